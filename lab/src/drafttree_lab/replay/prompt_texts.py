"""The prompts of a paper's sets, read from a folder laid out as `docs/replay.md` says, or from those that ship."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

from drafttree.core.errors import InputError
from drafttree.measure.prompts import Example, spread_examples
from drafttree_lab.replay.paper import PromptSet, read_paper

ENDINGS = (".jsonl", ".jsonl.gz", ".raw.gz", ".raw", ".txt", ".txt.gz")
Sets = Mapping[tuple[str, str], Sequence[Example]]
"""Prompts by the name of the paper and of the set."""


@dataclass(frozen=True)
class PromptTexts:
    """The prompts of all sets.

    Attributes:
        texts: the texts, by paper and set.
        missing: why there are no prompts, by paper and set.
        notes: what the texts lack, by paper and set, where not all of the set ships.
    """

    texts: Sets
    missing: Mapping[tuple[str, str], str]
    notes: Mapping[tuple[str, str], str]


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
    texts, missing, notes = {}, {}, {}
    with nullcontext(folder) if folder else as_file(files("drafttree_lab.replay") / "data") as base:
        for place, each in _sets(papers):
            path = _find(Path(base), each)
            if folder and not path:
                missing[place] = f"{each.file} is not in {folder}"
            elif not path or (each.withheld and not folder):
                why = f" ({each.withheld})" if each.withheld else ""
                missing[place] = f"these prompts do not ship{why}; give a folder that has them with --data"
            else:
                texts[place] = spread_examples([path], limit, category=each.category, excerpt=None)
                if not folder and (note := _note(each, len(texts[place]), limit)):
                    notes[place] = note
    return PromptTexts(texts, missing, notes)


def _sets(papers: Sequence[str]) -> Iterator[tuple[tuple[str, str], PromptSet]]:
    """Every set of some papers, with the names of both."""
    for paper in papers:
        for name, each in read_paper(paper).sets.items():
            yield (paper, name), each


def _note(each: PromptSet, found: int, limit: int) -> str:
    """What the shipped prompts of a set lack; empty for nothing."""
    part = [f"only prompts of {each.part} ship; give a folder that has all with --data"] if each.part else []
    few = [f"{found} prompts ship, fewer than --limit {limit}"] if found < limit else []
    return "; ".join([*part, *few])


def _find(folder: Path, each: PromptSet) -> Path | None:
    paths = (folder / f"{each.file}{ending}" for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)
