"""A judgement's estimate and interval on a short scale, as the forest plots of a meta-analysis have it."""

import math
from dataclasses import dataclass

from drafttree_lab.replay.verdict import Judgement

WIDEST = 1.5
"""The ratio at the right end; its inverse is at the left."""


@dataclass(frozen=True)
class Strip:
    """Places on a scale from 0 to 100, whose middle says that there is no difference.

    Attributes:
        low: the place of the interval's lower end.
        middle: the place of the estimate.
        high: the place of the interval's upper end.
    """

    low: float
    middle: float
    high: float

    @property
    def beyond(self) -> int:
        """-1 or 1 where the estimate lies behind the left or the right end, 0 on the scale."""
        return (self.middle == 100) - (self.middle == 0)


def make_strip(judgement: Judgement, *, is_ratio: bool) -> Strip | None:
    """The strip of a judgement, None without an interval; ratios lie on a logarithmic scale."""
    ends = judgement.low, judgement.estimate, judgement.high
    if any(each is None or not math.isfinite(each) for each in ends):
        return None
    low, middle, high = (_place(each or 0.0, is_ratio) for each in ends)
    return Strip(low, middle, high)


def _place(value: float, is_ratio: bool) -> float:
    if is_ratio:
        value = math.log(value, WIDEST) if value > 0 else -1.0
    return round(50 + 50 * min(max(value, -1.0), 1.0), 2)
