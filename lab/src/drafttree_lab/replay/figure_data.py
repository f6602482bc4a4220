"""What a figure needs besides the values of its table, from the rounds of the texts."""

from collections import Counter
from collections.abc import Iterator

from drafttree_lab.replay.experiment import Block
from drafttree_lab.replay.measured import Measured
from drafttree_lab.replay.paper import AUTOREGRESSIVE
from drafttree_lab.replay.text_cell import TextCounts

DEEPEST, LAST_RANK = 16, 10
"""Levels and ranks of a heat map; ranks behind the last are counted with it."""


def figure_data(measured: Measured) -> dict[str, object]:
    """By method, the points of a figure: of a heat map, scatter or box plot, or of a text's tokens.

    Empty where the values of the table are all that is drawn.
    """
    made = {"heatmap": _heatmap, "scatter": _scatter, "boxes": _boxes, "tokens": _tokens}
    draw = made.get(measured.experiment.result.figure or "")
    if draw is None:
        return {}
    names = dict.fromkeys(name for block in measured.experiment.blocks for name in block.ways if name != AUTOREGRESSIVE)
    return {name: draw(measured, name) for name in names}


def _heatmap(measured: Measured, name: str) -> list[list[float]]:
    """The share of all rounds that accepted a node of each rank (columns) on each level (rows)."""
    found, rounds = Counter[tuple[int, int]](), 0
    for _, counts in _texts(measured, name):
        rounds += len(counts.ranks)
        for ranks in counts.ranks:
            found.update((level, min(rank, LAST_RANK)) for level, rank in enumerate(ranks[:DEEPEST]))
    deepest = max((level for level, _ in found), default=-1) + 1
    return [[found[level, rank] / rounds for rank in range(1, LAST_RANK + 1)] for level in range(deepest)]


def _scatter(measured: Measured, name: str) -> list[tuple[int, int, int]]:
    """Draft passes and committed tokens of the rounds, with how many rounds have them."""
    found = Counter[tuple[int, int]]()
    for _, counts in _texts(measured, name):
        found.update(zip(counts.passes, counts.committed, strict=True))
    return [(passes, committed, count) for (passes, committed), count in sorted(found.items())]


def _boxes(measured: Measured, name: str) -> dict[str, list[float]]:
    """By set, the tokens per round of every text."""
    found: dict[str, list[float]] = {}
    for block, counts in _texts(measured, name):
        above, below = counts.fraction("tau")
        found.setdefault(block.setting.set, []).append(above / below)
    return found


def _tokens(measured: Measured, name: str) -> list[int]:
    """Of the first text, for every round how many tokens were drafted and accepted; each round adds one more."""
    return next((counts.accepted for _, counts in _texts(measured, name)), [])


def _texts(measured: Measured, name: str) -> Iterator[tuple[Block, TextCounts]]:
    """The counts of all texts of a method."""
    for block in measured.experiment.blocks:
        for number in measured.numbers(block, "tau"):
            if counts := measured.counts(block, name, number):
                yield block, counts
