"""What decoding of many requests is meant to reach. Nothing is asserted."""

from collections.abc import Callable, Sequence

from drafttree.evaluation.estimate import RatioEstimate
from drafttree_lab.experiment.aim import Aim
from drafttree_lab.load.batch_row import BatchRow

OF_PLAIN, OVER_PLAIN, OF_FIXED, OVER_ONE_BY_ONE = 0.97, 1.5, 0.97, 4.0
LEAST_TURNS = 3
"""Turns from which on the upper end of an interval says something: that of two is wide enough to reach any aim."""
SMALL, LARGE = 4, 16
"""The sizes up to which speculation is to gain much, and at which batching is."""


def batch_aims(rows: Sequence[BatchRow]) -> list[Aim]:
    """All aims over some sizes."""
    small, large = [[row for row in rows if test(row.size)] for test in (lambda size: size <= SMALL, LARGE.__eq__)]
    return [
        _lowest("upper end of speculative over plain", rows, _upper_end, OF_PLAIN),
        _lowest(f"speculative over plain up to size {SMALL}", small, lambda row: _mean(row.over_plain), OVER_PLAIN),
        _lowest("speculative over the best fixed budget", rows, lambda row: _mean(row.over_best_fixed), OF_FIXED),
        _lowest(
            f"plain over one by one at size {LARGE}",
            large,
            lambda row: _mean(row.plain_over_one_by_one),
            OVER_ONE_BY_ONE,
        ),
    ]


def _lowest(what: str, rows: Sequence[BatchRow], figure: Callable[[BatchRow], float | None], least: float) -> Aim:
    """The lowest figure over some sizes."""
    found = {row.size: value for row in rows if (value := figure(row)) is not None}
    if not found:
        return Aim(f"lowest {what}: no figure", None, least)
    size = min(found, key=found.__getitem__)
    return Aim(f"lowest {what}: {found[size]:.3f} at {size}, of {len(found)} sizes", found[size], least)


def _mean(ratio: RatioEstimate | None) -> float | None:
    return ratio.mean if ratio else None


def _upper_end(row: BatchRow) -> float | None:
    return row.over_plain.high if row.over_plain and row.turns >= LEAST_TURNS else None
