"""The prompts of a paper's sets, read from a folder laid out as `docs/replay.md` says, or from those that ship."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from drafttree.core.errors import InputError
from drafttree.evaluation.prompts import Example, spread_examples
from drafttree_lab.replay.paper import PromptSet, read_paper

ENDINGS = (".jsonl", ".jsonl.gz", ".raw.gz", ".raw", ".txt", ".txt.gz")
NOT_SHIPPED = "these prompts do not ship; give a folder that has them with --data"
Sets = Mapping[tuple[str, str], Sequence[Example]]
"""Prompts by the name of the paper and of the set."""


@dataclass(frozen=True)
class PromptTexts:
    """The prompts of all sets.

    Attributes:
        texts: the texts, by paper and set.
        missing: why there are no prompts, by paper and set.
    """

    texts: Sets
    missing: Mapping[tuple[str, str], str]


def read_prompt_texts(papers: Sequence[str], folder: Path | None, limit: int) -> PromptTexts:
    """The prompts of the sets of some papers, as many of each, evenly spaced.

    Args:
        papers: their names.
        folder: the folder with the files that the papers' sets name; None for those that ship.
        limit: prompts of each set.

    Raises:
        InputError: there is no such folder, or a file is bad; the message has its name and the number of the line.
    """
    if folder and not folder.is_dir():
        raise InputError(f"--data {str(folder)!r} is no folder; name one that is laid out as docs/replay.md says")
    texts, missing = {}, {}
    with nullcontext(folder) if folder else as_file(files("drafttree.evaluation") / "data") as base:
        for paper in papers:
            for name, each in read_paper(paper).sets.items():
                if path := _find(Path(base), each):
                    texts[paper, name] = spread_examples([path], limit, category=each.category, excerpt=None)
                else:
                    missing[paper, name] = f"{each.file} is not in {folder}" if folder else NOT_SHIPPED
    return PromptTexts(texts, missing)


def _find(folder: Path, each: PromptSet) -> Path | None:
    paths = (folder / f"{each.file}{ending}" for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)
