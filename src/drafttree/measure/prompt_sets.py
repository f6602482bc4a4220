"""Prompt sets by name: kinds of text, read from a folder, or those that ship with the package."""

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from drafttree.core.errors import InputError, unknown
from drafttree.measure.prompts import Example, spread_examples

SETS = {
    "books": "books/test",
    "chat": "prompts/mt_bench",
    "code": "prompts/humaneval",
    "summaries": "prompts/cnn_dm",
}
"""The file of each set in a folder of prompts, without its ending."""
ENDINGS = (".jsonl", ".jsonl.gz")
NOT_SHIPPED = {"summaries"}
"""Sets whose licence does not let them ship."""


def shipped_prompts() -> list[str]:
    """A few openings to measure on where no prompt file is given."""
    return (files("drafttree.measure") / "data/prompts.txt").read_text(encoding="utf-8").splitlines()


def read_prompt_sets(
    names: Sequence[str], folder: Path | None, limit: int | None, **selection: Any
) -> dict[str, list[Example]]:
    """The prompts of some sets by name, as many of each, evenly spaced over its file.

    Args:
        names: names of the sets.
        folder: the folder with the files that `SETS` names, each as .jsonl or .jsonl.gz; None for the shipped ones,
            which lack those of `NOT_SHIPPED`.
        limit: take no more prompts of each set than this; None for all.
        **selection: `category` and `excerpt`, as `read_examples` takes them.

    Raises:
        ConfigError: a set is unknown.
        InputError: a file is missing or bad, or none of the sets ships.
    """
    if wrong := next((name for name in names if name not in SETS), None):
        raise unknown("prompt set", wrong, SETS)
    if folder:
        return {name: spread_examples([_find(folder, name)], limit, **selection) for name in names}
    shipped = [name for name in names if name not in NOT_SHIPPED]
    if not shipped:
        raise InputError(f"{', '.join(names) or 'no set'}: no such prompts ship; name a folder with --data")
    with as_file(files("drafttree.measure") / "data") as data:
        return {name: spread_examples([_find(data, name)], limit, **selection) for name in shipped}


def _find(folder: Path, name: str) -> Path:
    """The file of a set."""
    paths = [folder / f"{SETS[name]}{ending}" for ending in ENDINGS]
    if found := next((path for path in paths if path.is_file()), None):
        return found
    raise InputError(f"{folder}: no {SETS[name]}.jsonl (or .jsonl.gz) for the set {name!r}; leave it out with --sets")
