"""The summaries of a replay, kept beside its cells, so that a report needs no model."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from pydantic import TypeAdapter

from drafttree.core.errors import InputError
from drafttree.measure.prompts import read_text
from drafttree.measure.run_store import RUNS
from drafttree_lab.replay.main_claims import correct_main_claims
from drafttree_lab.replay.paper import paper_names, read_paper
from drafttree_lab.replay.summary import ResultSummary

FOLDER = "results"
FORMAT = 2
"""Of summaries and cells: 2 has both verdicts of a claim, and texts that go on past EOS tokens."""


@dataclass(frozen=True)
class KeptResult:
    """A result as it stood after a command.

    Attributes:
        summary: the summary of the result.
        command: the command that ran it last.
        environment: versions, machine and time, by name.
        format: `FORMAT` when it was written.
    """

    summary: ResultSummary
    command: str
    environment: dict[str, str]
    format: int = FORMAT


def write_results(folder: Path, results: Sequence[ResultSummary], command: str) -> None:
    """Keep summaries, each in a file of its own; an earlier one of the same result is replaced.

    Main claims are kept as they were judged alone: they are corrected for their number when they are read together.

    Raises:
        InputError: a file cannot be written.
    """
    environment = describe_environment()
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for each in results:
            path = folder / FOLDER / f"{each.id.replace('/', '-')}.json"
            kept = _ADAPTER.dump_json(KeptResult(each, command, environment), indent=1)
            path.with_suffix(".new").write_bytes(kept)
            os.replace(path.with_suffix(".new"), path)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}; name another with --out") from error


def read_results(folder: Path) -> list[KeptResult]:
    """All kept summaries, in the order of the papers, with main claims corrected for their number.

    Raises:
        InputError: there are none, or a file is broken or of another format.
    """
    paths = sorted((folder / FOLDER).glob("*.json"))
    cells = folder / RUNS
    if not paths and cells.is_file() and (runs := cells.read_bytes().count(b"\n")):
        kept = f"{runs} finished run{'s' if runs > 1 else ''} of a replay that ended before its first results"
        raise InputError(f"{folder}: {kept}; the same command goes on from there")
    if not paths:
        raise InputError(f"{folder}: no results of a replay in it; run drafttree replay with --out {folder} first")
    kept = sorted((_read(path) for path in paths), key=lambda kept: _place(kept.summary.id))
    corrected = correct_main_claims([each.summary for each in kept])
    return [replace(each, summary=summary) for each, summary in zip(kept, corrected, strict=True)]


def describe_environment() -> dict[str, str]:
    """Versions, machine and time of a run."""
    packages = {name: version(name) for name in ("drafttree", "torch", "transformers")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    own = {"python": platform.python_version(), "device": device, "threads": str(torch.get_num_threads())}
    return packages | own | {"time": datetime.now(UTC).isoformat(timespec="minutes")}


def _read(path: Path) -> KeptResult:
    try:
        found = json.loads(read_text(path))
        kept = _ADAPTER.validate_python(found) if "summary" not in found or found.get("format") == FORMAT else None
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{path}: no result of a replay; remove it, and run drafttree replay again") from error
    if kept is None:
        raise InputError(
            f"{path}: a result in the format of another version; run its command again, with another --out"
        )
    return kept


def _place(result: str) -> tuple[int, int]:
    """Where a result stands among all."""
    paper, _, name = result.partition("/")
    papers = paper_names()
    if paper not in papers or name not in read_paper(paper).results:
        return len(papers), 0
    return papers.index(paper), list(read_paper(paper).results).index(name)


_ADAPTER = TypeAdapter(KeptResult)
