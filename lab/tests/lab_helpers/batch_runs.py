"""Runs of many requests that were never decoded, with the figures a test wants."""

from typing import Any

from drafttree.measure.interval import Interval
from drafttree_lab.load.batch_row import BatchRow
from drafttree_lab.load.batch_run import BatchRun, SteadyRounds

TEXT = [1, 2, 3, 4]


def run(speed: float, size: int = 2, *, text: list[int] = TEXT, **fields: Any) -> BatchRun:
    """A run whose texts take a second in all, and whose steady state has so many tokens a second in ten rounds."""
    parts = {"requests": 10 * size, "rounds": 10, "committed": 100, "expected": 100.0, "seconds": 100 / speed} | fields
    return BatchRun([list(text)] * size, 1.0, SteadyRounds(**parts))


def row(size: int, ratio: Interval | None, **fields: Any) -> BatchRow:
    """A row whose speculation is so much faster than plain decoding."""
    plain: dict[str, Any] = {
        "turns": 3,
        "speeds": {"speculative": 20.0 * size, "plain": 10.0 * size, "fixed 2": 15.0 * size},
        "end_to_end": {"speculative": 10.0 * size, "plain": 9.0 * size, "fixed 2": 8.0 * size},
        "over_plain_end_to_end": Interval(10 / 9, 1.0, 1.2),
        "best_fixed": "fixed 2",
        "over_best_fixed": Interval(1.1, 1.0, 1.2),
        "over_transformers": None,
        "plain_over_transformers": None,
        "plain_over_one_by_one": Interval(1.0 * size),
        "tau": 2.5,
        "expected_tau": 2.4,
        "drafted": 3.5,
        "drafting": 0.75,
        "predicted_gain": 1.9,
        "law": None,
    }
    return BatchRow(size=size, over_plain=ratio, **(plain | fields))
