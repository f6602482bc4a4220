"""Checks every architecture in turn; an interrupted sweep continues from its file of results."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import transformers

from drafttree.core.errors import InputError, unknown
from drafttree_lab.support.check import Finding, check_architecture, check_images, check_popular
from drafttree_lab.support.image_models import IMAGES, image_architectures
from drafttree_lab.support.popular_configs import POPULAR
from drafttree_lab.support.random_models import architectures, language_models

VERSIONS = {
    "drafttree": version("drafttree"),
    "torch": torch.__version__.partition("+")[0],
    "transformers": transformers.__version__,
}


@dataclass(frozen=True)
class SupportTable:
    """The results for several architectures, in alphabetical order; first those of prompts without images."""

    findings: list[Finding]

    @property
    def passed(self) -> bool:
        """True if no architecture fails."""
        return all(map(attrgetter("passed"), self.findings))

    @property
    def counts(self) -> dict[str, int]:
        """The number of architectures with each result."""
        return dict(Counter(map(attrgetter("result"), self.findings)).most_common())

    def summary(self) -> dict[str, Any]:
        """The whole table as JSON data."""
        findings = list(map(asdict, self.findings))
        return {"versions": VERSIONS, "counts": self.counts, "findings": findings, "passed": self.passed}


def checked_names() -> list[str]:
    """The names of all architectures that are checked: with prompts of text, then with images."""
    return [*architectures(), *image_architectures()]


def check_all(
    selected_names: Sequence[str] = (),
    out: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
    popular: bool = False,
) -> SupportTable:
    """Check architectures, or popular models.

    Args:
        selected_names: names of `checked_names`, or of `POPULAR` for popular models; all by default. The type of a
            multimodal model means its language model; with `IMAGES` behind it, the whole model.
        out: file of JSON lines that keeps the results. What it has is not computed again, except failures and results
            of other versions.
        progress: called after every architecture with its name.
        popular: whether to check popular models, with their own contexts, vocabularies and heads.

    Raises:
        ConfigError: an architecture is unknown; the message names the nearest.
        InputError: the file cannot be written, or holds something else.
    """
    all_names, part_types = ([*POPULAR], dict[str, str]()) if popular else (checked_names(), language_models())
    if unknown_names := [name for name in selected_names if name not in {*all_names, *part_types}]:
        raise unknown("popular model" if popular else "architecture", unknown_names[0], [*all_names, *part_types])
    findings = _read(out) if out else {}
    wanted_names = {part_types.get(name, name) for name in selected_names}
    names = [name for name in all_names if name in wanted_names] or all_names
    check_without_images = check_popular if popular else check_architecture
    for name in names:
        if name not in findings:
            findings[name] = check_images(name) if name.endswith(IMAGES) else check_without_images(name)
            if out:
                _write(out, findings.values())
        progress(name)
    return SupportTable([findings[name] for name in names])


def _read(path: Path) -> dict[str, Finding]:
    """The results of a file that are of these versions and have passed."""
    findings: dict[str, Finding] = {}
    try:
        lines = path.read_text().splitlines() if path.exists() else []
        for entry in map(json.loads, lines):
            if entry["versions"] == VERSIONS:
                finding = Finding(**entry["finding"])
                findings[finding.name] = finding
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(
            f"--out {str(path)!r} is not a file of results of drafttree support; name another file"
        ) from None
    return {name: finding for name, finding in findings.items() if finding.passed}


def _write(path: Path, findings: Iterable[Finding]) -> None:
    """Replace the file atomically: an interruption leaves the old file or the new one."""
    lines = [json.dumps({"finding": asdict(finding), "versions": VERSIONS}) + "\n" for finding in findings]
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("".join(lines))
        os.replace(partial, path)
    except OSError as error:
        raise InputError(f"--out {str(path)!r} cannot be written: {error.strerror}; name another") from error
