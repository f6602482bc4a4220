"""Helpers that commands share: decoders and prompts from their options, and JSON on standard output."""

import json
import re
import sys
from pathlib import Path

from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder
from drafttree.evaluation.bench.inflation import load_inflated
from drafttree.evaluation.bench.policies import shipped_prompts
from drafttree.evaluation.certify import fit
from drafttree.evaluation.prompts import read_prompts
from drafttree.loading import choose_drafter, zoo
from drafttree.loading.load import load


def load_named(target: str, drafter: str, *arguments: str, **options: str) -> Decoder:
    """A decoder; what "auto" stands for is said where it is not the embedded pair."""
    if sys.stderr.isatty() and target not in zoo.NAMES and not Path(target).exists():
        print(f"looking for {target} on the Hugging Face hub ...", file=sys.stderr)
    if drafter != "auto":
        return load(target, drafter, *arguments, **options)
    choice = choose_drafter(target)
    decoder = load(target, choice.name, *arguments, **options)
    if target != "embedded":
        print(f"drafter: {choice.name} ({choice.reason}); name another with --drafter", file=sys.stderr)
    return decoder


def load_speculative(target: str, drafter: str, dtype: str, device: str, shape: str | None = None) -> Decoder:
    """A decoder that has a drafter, its target inflated to a shape if one is named.

    Raises:
        ConfigError: it would have none.
    """
    decoder = load_inflated(target, drafter, shape, dtype, device) if shape else None
    decoder = decoder or load_named(target, drafter, dtype=dtype, device=device)
    if decoder.drafter is None:
        raise ConfigError(f"there is no drafter for {target!r}; name one with --drafter")
    return decoder


def read_token_ids(decoder: Decoder, paths: list[Path] | None, limit: int | None, length: int) -> list[list[int]]:
    """The token ids of the prompts of some files, or of the shipped ones, with room for so many new tokens."""
    texts = read_prompts(paths, limit) if paths else shipped_prompts()[:limit]
    return [fit(decoder, text, length)[0] for text in texts]


def name_files(paths: list[Path] | None) -> list[tuple[str, Path]]:
    """Prompt files with short names, whole paths where those would be the same."""
    short = [re.sub(r"(\.(jsonl|txt|raw|gz))+$", "", path.name) for path in paths or ()]
    return [(str(path) if short.count(name) > 1 else name, path) for name, path in zip(short, paths or (), strict=True)]


def print_json(report: dict[str, object]) -> None:
    """Print one JSON object on a line of its own."""
    print(json.dumps(report, ensure_ascii=False))
