"""What rounds of a batch cost: a measured curve, mended by the rounds of the engine itself."""

import math
from collections.abc import Sequence

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.batching.cost_fit import OUTLIER, CostFit
from drafttree.engine.batching.engine_metrics import EngineRound

MEMORY = 8.0
"""Rounds after which a measured cost counts 1/e."""
UNKNOWN = CostCurve(Costs((1, 2), (1.0, 1.0625)), (DraftCosts(0.0, Costs((1,), (0.0,))),), 0.0, 0.0)
"""Without a drafter there is no curve: a row adds a sixteenth of a pass until passes have been seen."""


class Mean:
    """The latest values of something, by size; sizes that were not seen follow the nearest that was.

    Args:
        unknown: the value before anything was seen.
    """

    def __init__(self, unknown: float) -> None:
        self._unknown = unknown
        self._values: dict[int, float] = {}

    def at(self, size: float) -> float:
        """The value for a size."""
        if not self._values:
            return self._unknown
        bucket = _bucket(size)
        return self._values[min(self._values, key=lambda known: abs(known - bucket))]

    def observe(self, size: float, value: float) -> None:
        """Take note of the value that a round has shown."""
        bucket = _bucket(size)
        before = self._values.get(bucket, value)
        self._values[bucket] = before + (min(value, OUTLIER * before) - before) / MEMORY


def _bucket(size: float) -> int:
    """Sizes within a factor of the root of 2 share a bucket."""
    return round(2 * math.log2(max(size, 1.0)))


class BatchCosts:
    """The costs of passes and rounds.

    The curve is of passes over one request, and perhaps of another hour; each number of requests has a line of its own
    that leads from it to what passes over so many cost.

    Args:
        curve: of target and drafter, None where there is no drafter.
        frozen: whether to leave it as it is, so that no clock decides what is drafted.

    Attributes:
        frozen: as given.
    """

    def __init__(self, curve: CostCurve | None, *, frozen: bool = False) -> None:
        self.frozen = frozen
        self._curve = curve or UNKNOWN
        self._passes: dict[int, CostFit] = {}
        self._drafts = Mean(1.0)
        self._overhead = Mean(self._curve.plain_overhead)

    def target(self, batch: int, rows: int) -> float:
        """Of a target pass over the rows of so many requests."""
        alone, bucket = self._curve.target.at(rows), _bucket(batch)
        if not self._passes:
            return alone
        return self._passes[min(self._passes, key=lambda known: abs(known - bucket))].at(alone)

    def knows_rows(self, batch: int) -> bool:
        """Whether it is known what a further row adds to a pass over so many requests."""
        fit = self._passes.get(_bucket(batch))
        return self.frozen or (fit is not None and fit.is_informed)

    def level(self, source: int, width: int) -> float:
        """Of a packed draft pass over so many nodes, behind the first one."""
        return self._curve.draft_of(source).later.at(width) * self._drafts.at(width)

    def drafting(self, source: int, widths: Sequence[int]) -> float:
        """Of drafting levels of these widths over all requests, the first being that of the roots."""
        return self._expected_drafting(source, widths) * self._drafts.at(_mean(widths))

    def round(self, batch: int, rows: int, drafting: float = 0.0) -> float:
        """Of a whole round."""
        return self.target(batch, rows) + drafting + self._overhead.at(batch)

    def without_outlier(self, seconds: float, cost: float) -> float:
        """What a round counts for that took so long where this cost was expected of it."""
        return cost if self.frozen else min(seconds, OUTLIER * cost)

    def rows_within(self, batch: int, most: int, share: float) -> int:
        """How many rows, at most so many, can join a pass over a node of each request before it costs `share` of it."""
        limit, low, high = share * self.target(batch, batch), 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.target(batch, batch + middle) <= limit else (low, middle - 1)
        return low

    def observe(self, turn: EngineRound, drafted: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Mend the costs by a round.

        Args:
            turn: that has ended.
            drafted: source and widths of every group of requests that was drafted for.
        """
        if self.frozen or not turn.rows:
            return
        fit = self._passes.setdefault(_bucket(turn.batch), CostFit())
        fit.observe(self._curve.target.at(turn.rows), turn.target_seconds)
        expected = sum(self._expected_drafting(*group) for group in drafted)
        if expected > 0:
            widths = [width for _, each in drafted for width in each]
            self._drafts.observe(_mean(widths), turn.draft_seconds / expected)
        self._overhead.observe(turn.batch, turn.seconds - turn.target_seconds - turn.draft_seconds)

    def _expected_drafting(self, source: int, widths: Sequence[int]) -> float:
        """By the curve, in which the first level is that of one request."""
        if not widths:
            return 0.0
        draft = self._curve.draft_of(source)
        return draft.first + sum(map(draft.later.at, widths)) - draft.later.at(1)


def _mean(widths: Sequence[int]) -> float:
    return sum(widths) / max(len(widths), 1)
