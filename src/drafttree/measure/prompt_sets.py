"""The prompts that ship with the package."""

from importlib.resources import as_file, files
from typing import Any

from drafttree.measure.prompts import Example, read_examples

SETS = ("books/test.jsonl", "prompts/mt_bench.jsonl", "prompts/humaneval.jsonl")
"""Files of the shipped sets: books, chat and code."""


def shipped_prompts() -> list[str]:
    """A few openings of texts, which commands measure on if no prompt file is given."""
    return (files("drafttree.measure") / "data/prompts.txt").read_text(encoding="utf-8").splitlines()


def shipped_sets(**selection: Any) -> list[list[Example]]:
    """The prompts of every shipped set; arguments are `category` and `excerpt`, as for `read_examples`."""
    with as_file(files("drafttree.measure") / "data") as data:
        return [read_examples([data / name], **selection) for name in SETS]
