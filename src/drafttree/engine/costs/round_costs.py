"""What rounds cost by how many requests they advance: a measured curve, mended by the rounds themselves."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.costs.cost_fit import OUTLIER, CostFit

MEMORY = 8.0
"""Rounds after which a measured cost counts 1/e."""
UNKNOWN = CostCurve(Costs((1, 2), (1.0, 1.0625)), (DraftCosts(0.0, Costs((1,), (0.0,))),), 0.0, 0.0)
"""Without a drafter there is no curve: a row adds a sixteenth of a pass until passes have been seen."""


class RoundTimes(NamedTuple):
    """A round as its clock has it.

    Attributes:
        batch: requests that it advanced.
        rows: rows of its target pass.
        target: seconds of that pass.
        draft: seconds of drafting, growing the trees included.
        other: seconds of all else.
        drafted: source and widths of every group of requests that was drafted for.
    """

    batch: int
    rows: int
    target: float
    draft: float
    other: float
    drafted: Sequence[tuple[int, Sequence[int]]]


class Mean:
    """The latest values of something, by size; sizes that were not seen follow the nearest that was."""

    def __init__(self) -> None:
        self._values: dict[int, float] = {}

    def at(self, size: float, unknown: float) -> float:
        """The value for a size, `unknown` before anything was seen."""
        if not self._values:
            return unknown
        bucket = _bucket(size)
        return self._values[min(self._values, key=lambda known: abs(known - bucket))]

    def known(self, size: float, unknown: float) -> float:
        """The value for a size, `unknown` where it was not seen itself."""
        return self._values.get(_bucket(size), unknown)

    def observe(self, size: float, value: float) -> None:
        """Take note of the value that a round has shown."""
        bucket = _bucket(size)
        before = self._values.get(bucket, value)
        if OUTLIER * value < before:  # what was seen before were outliers, which only ever make things slower
            before = value
        self._values[bucket] = before + (min(value, OUTLIER * before) - before) / MEMORY


def _bucket(size: float) -> int:
    """Sizes within a factor of the root of 2 share a bucket."""
    return round(2 * math.log2(max(size, 1.0)))


class RoundCosts:
    """The costs of passes and rounds.

    The curve is of passes over one request, and perhaps of another hour; each number of requests has a line of its own
    that leads from it to what passes over so many cost.

    Args:
        curve: the curve of target and drafter, None where there is no drafter.
        frozen: whether to leave it as it is, so that no clock decides what is drafted.

    Attributes:
        frozen: as given.
    """

    def __init__(self, curve: CostCurve | None, *, frozen: bool = False) -> None:
        self.frozen = frozen
        self._curve = curve or UNKNOWN
        self._passes: dict[int, CostFit] = {}
        self._plain = Mean()  # of passes over roots alone, what all else is compared with
        self._drafts = [Mean() for _ in self._curve.draft]
        self._overhead = {False: Mean(), True: Mean()}

    def target(self, batch: int, rows: int) -> float:
        """Of a target pass over the rows of so many requests."""
        alone, bucket = self._curve.target.at(rows), _bucket(batch)
        if not self._passes:
            return alone
        fitted = self._passes[min(self._passes, key=lambda known: abs(known - bucket))].at(alone)
        plain = self._plain.known(batch, fitted)
        return plain if rows <= batch else max(fitted, plain)

    def knows_rows(self, batch: int) -> bool:
        """Whether it is known what a further row adds to a pass over so many requests."""
        fit = self._passes.get(_bucket(batch))
        return self.frozen or (fit is not None and fit.is_informed)

    def level(self, source: int, width: int) -> float:
        """Of a draft pass over so many nodes, behind the first one."""
        return self._curve.draft_of(source).later.at(width) * self._drafting_factor(source, width)

    def drafting(self, source: int, widths: Sequence[int]) -> float:
        """Of drafting levels of these widths over all requests, the first being that of the roots."""
        return self._expected_drafting(source, widths) * self._drafting_factor(source, _mean(widths))

    def round(self, batch: int, rows: int, drafting: float = 0.0) -> float:
        """Of a whole round."""
        return self.target(batch, rows) + drafting + self._other(batch, drafted=drafting > 0)

    def curve(self) -> CostCurve:
        """The curve of rounds that advance one request, as rounds have mended it.

        What was not seen is taken to be as much slower as target passes over one node.
        """
        target, pace = self._curve.target, self.target(1, 1) / self._curve.target.at(1)
        return CostCurve(
            target=Costs.of({nodes: self.target(1, nodes) for nodes in target.sizes}),
            draft=tuple(
                DraftCosts(
                    draft.first * factors.at(1, pace),
                    Costs.of({width: draft.later.at(width) * factors.at(width, pace) for width in draft.later.sizes}),
                )
                for draft, factors in zip(self._curve.draft, self._drafts, strict=True)
            ),
            overhead=self._overhead[True].at(1, pace * self._curve.overhead),
            plain_overhead=self._overhead[False].at(1, pace * self._curve.plain_overhead),
        )

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

    def observe(self, times: RoundTimes) -> None:
        """Mend the costs by a round that has ended."""
        if self.frozen or not times.rows:
            return
        fit = self._passes.setdefault(_bucket(times.batch), CostFit())
        fit.observe(self._curve.target.at(times.rows), times.target)
        if times.rows == times.batch:
            self._plain.observe(times.batch, times.target)
        expected = sum(self._expected_drafting(*group) for group in times.drafted)
        if expected > 0:
            widths = [width for _, each in times.drafted for width in each]
            for source in {source for source, _ in times.drafted}:
                self._factors(source).observe(_mean(widths), times.draft / expected)
        self._overhead[bool(times.drafted)].observe(times.batch, times.other)

    def _other(self, batch: int, *, drafted: bool) -> float:
        """Of a round outside its passes; where no such round was seen, as of the other kind."""
        known, other = self._overhead[drafted], self._overhead[not drafted]
        return known.at(batch, other.at(batch, self._curve.overhead if drafted else self._curve.plain_overhead))

    def _drafting_factor(self, source: int, width: float) -> float:
        """What drafting costs by the clock over what it costs by the curve."""
        return self._factors(source).at(width, 1.0)

    def _factors(self, source: int) -> Mean:
        return self._drafts[min(source, len(self._drafts) - 1)]

    def _expected_drafting(self, source: int, widths: Sequence[int]) -> float:
        """By the curve, in which the first level is that of one request."""
        if not widths:
            return 0.0
        draft = self._curve.draft_of(source)
        return draft.first + sum(map(draft.later.at, widths)) - draft.later.at(1)


def _mean(widths: Sequence[int]) -> float:
    return sum(widths) / max(len(widths), 1)
