"""What rounds of a batch cost: a measured curve, mended by the rounds of the engine itself."""

import math
from collections.abc import Sequence

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.batching.engine_metrics import EngineRound

MEMORY = 8.0
"""Rounds after which a measured cost counts 1/e."""
UNKNOWN = CostCurve(Costs((1, 2), (1.0, 1.0625)), (DraftCosts(0.0, Costs((1,), (0.0,))),), 0.0, 0.0)
"""Without a drafter there is no curve: a row adds a sixteenth of a pass until passes have been seen."""


class Scale:
    """How much dearer something is than expected, by its size; sizes that were not seen follow the nearest that was."""

    def __init__(self) -> None:
        self._ratios: dict[int, float] = {}

    def at(self, size: float) -> float:
        """The ratio for a size; 1 before anything was seen."""
        if not self._ratios:
            return 1.0
        bucket = _bucket(size)
        return self._ratios[min(self._ratios, key=lambda known: abs(known - bucket))]

    def observe(self, size: float, ratio: float) -> None:
        """Take note of the ratio that a round has shown."""
        bucket = _bucket(size)
        before = self._ratios.get(bucket, ratio)
        self._ratios[bucket] = before + (ratio - before) / MEMORY


def _bucket(size: float) -> int:
    """Sizes within a factor of the root of 2 share a bucket."""
    return round(2 * math.log2(max(size, 1.0)))


class BatchCosts:
    """The costs of passes and rounds, in the unit of a curve until rounds are seen, and in seconds from then on.

    Args:
        curve: of target and drafter, None where there is no drafter.
        frozen: whether to leave it as it is, so that no clock decides what is drafted.

    Attributes:
        frozen: as given.
    """

    def __init__(self, curve: CostCurve | None, *, frozen: bool = False) -> None:
        self.frozen = frozen
        self._curve = curve or UNKNOWN
        self._target, self._draft = Scale(), Scale()
        self._overhead: dict[int, float] = {}

    def target(self, rows: int) -> float:
        """Of a target pass."""
        return self._curve.target.at(rows) * self._target.at(rows)

    def level(self, source: int, width: int) -> float:
        """Of a packed draft pass over so many nodes, behind the first one."""
        return self._curve.draft_of(source).later.at(width) * self._draft.at(width)

    def drafting(self, source: int, widths: Sequence[int]) -> float:
        """Of drafting levels of these widths over all requests, the first being that of the roots."""
        return self._expected_drafting(source, widths) * self._draft.at(_mean(widths))

    def round(self, batch: int, rows: int, drafting: float = 0.0) -> float:
        """Of a whole round."""
        overhead = self._overhead.get(_bucket(batch), self._curve.plain_overhead)
        return self.target(rows) + drafting + overhead

    def rows_within(self, rows: int, most: int, share: float) -> int:
        """How many rows, at most so many, can join a pass before it costs `share` times what it does."""
        limit, low, high = share * self.target(rows), 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.target(rows + middle) <= limit else (low, middle - 1)
        return low

    def observe(self, turn: EngineRound, drafted: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Mend the costs by a round.

        Args:
            turn: that has ended.
            drafted: source and widths of every group of requests that was drafted for.
        """
        if self.frozen or not turn.rows:
            return
        self._target.observe(turn.rows, turn.target_seconds / self._curve.target.at(turn.rows))
        expected = sum(self._expected_drafting(*group) for group in drafted)
        if expected > 0:
            widths = [width for _, each in drafted for width in each]
            self._draft.observe(_mean(widths), turn.draft_seconds / expected)
        outside = turn.seconds - turn.target_seconds - turn.draft_seconds
        before = self._overhead.get(_bucket(turn.batch), outside)
        self._overhead[_bucket(turn.batch)] = before + (outside - before) / MEMORY

    def _expected_drafting(self, source: int, widths: Sequence[int]) -> float:
        """By the curve, in which the first level is that of one request."""
        if not widths:
            return 0.0
        draft = self._curve.draft_of(source)
        return draft.first + sum(map(draft.later.at, widths)) - draft.later.at(1)


def _mean(widths: Sequence[int]) -> float:
    return sum(widths) / max(len(widths), 1)
