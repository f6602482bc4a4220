"""The figures of one batch size, from the runs of all ways of decoding in every turn."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean

from drafttree.measure.interval import Interval
from drafttree.measure.law import SpeedupLaw
from drafttree.measure.method import PLAIN
from drafttree_lab.experiment.round_counts import RoundTerms
from drafttree_lab.load.batch_run import BatchRun, SteadyRounds
from drafttree_lab.load.batch_ways import FIXED, ONE_BY_ONE, SPECULATIVE, TRANSFORMERS

RunsByWay = Mapping[str, BatchRun]
"""The runs of every way of decoding on the same prompts."""


@dataclass(frozen=True)
class BatchRow:
    """One batch size; all speeds are of the steady state unless they are said to be end to end.

    Attributes:
        size: requests that are served at a time.
        turns: how many there were.
        speeds: tokens per second of all requests together by way of decoding, the geometric mean over the turns; none
            for a way that had no steady state in some turn.
        end_to_end: the same from the first prompt to the last token.
        over_plain: speculative over plain decoding, as all ratios None where either has no steady state.
        over_plain_end_to_end: the same end to end.
        best_fixed: the fixed budget with the best speed in these turns.
        over_best_fixed: speculative over that.
        over_transformers: speculative over transformers.
        plain_over_transformers: plain decoding over transformers.
        plain_over_one_by_one: plain decoding over one text after the other; without an interval where those are of the
            turns of another size.
        tau: tokens per request and round of speculative decoding.
        expected_tau: the same as the engine expected it.
        drafted: nodes per request and round, their roots left out.
        drafting: share of the rounds in which anything was drafted.
        predicted_gain: the speed of drafting over plain rounds, as the engine predicted it, the mean over the rounds
            that draft; None where it predicted nothing.
        law: the terms of speculative decoding, in target passes of plain decoding over as many requests.
    """

    size: int
    turns: int
    speeds: dict[str, float]
    end_to_end: dict[str, float]
    over_plain: Interval | None
    over_plain_end_to_end: Interval
    best_fixed: str | None
    over_best_fixed: Interval | None
    over_transformers: Interval | None
    plain_over_transformers: Interval | None
    plain_over_one_by_one: Interval | None
    tau: float
    expected_tau: float
    drafted: float
    drafting: float
    predicted_gain: float | None
    law: SpeedupLaw | None

    @classmethod
    def of(cls, size: int, turns: Sequence[RunsByWay]) -> "BatchRow":
        """The figures of some turns."""
        speeds = {way: _geometric_mean(found) for way in turns[0] if (found := _steady_speeds(turns, way))}
        fixed = [way for way in speeds if way.startswith(FIXED)]
        best = max(fixed, key=speeds.__getitem__, default=None)
        steady = SteadyRounds.total(turn[SPECULATIVE].steady for turn in turns)
        return cls(
            size=size,
            turns=len(turns),
            speeds=speeds,
            end_to_end={way: _geometric_mean(_speeds(turns, way)) for way in turns[0]},
            over_plain=_ratio(turns, SPECULATIVE, PLAIN),
            over_plain_end_to_end=Interval.of_ratio_by_student(_speeds(turns, SPECULATIVE), _speeds(turns, PLAIN)),
            best_fixed=best,
            over_best_fixed=_ratio(turns, SPECULATIVE, best),
            over_transformers=_ratio(turns, SPECULATIVE, TRANSFORMERS),
            plain_over_transformers=_ratio(turns, PLAIN, TRANSFORMERS),
            plain_over_one_by_one=_ratio(turns, PLAIN, ONE_BY_ONE),
            tau=_share(steady.committed, steady.requests),
            expected_tau=_share(steady.expected, steady.requests),
            drafted=_share(steady.drafted, steady.requests),
            drafting=_share(steady.drafting, steady.rounds),
            predicted_gain=steady.predicted_gain,
            law=_law(turns),
        )

    @property
    def speedup(self) -> float | None:
        """R by the terms of the law."""
        return RoundTerms.of(self.law).speedup if self.law else None

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "speedup": self.speedup}


def make_rows(found: Mapping[int, Sequence[RunsByWay]]) -> list[BatchRow]:
    """The rows of all sizes, each beside one text after the other, which was run at one of the sizes at most.

    Args:
        found: turns by size.
    """
    rows = [BatchRow.of(size, turns) for size, turns in found.items()]
    alone = next((row.speeds[ONE_BY_ONE] for row in rows if ONE_BY_ONE in row.speeds), None)
    return [row if row.plain_over_one_by_one or not alone else _beside(row, alone) for row in rows]


def _beside(row: BatchRow, alone: float) -> BatchRow:
    """The row, with plain decoding over the speed of one text after the other."""
    speed = row.speeds.get(PLAIN)
    return replace(row, plain_over_one_by_one=Interval(speed / alone)) if speed else row


def _speeds(turns: Sequence[RunsByWay], way: str) -> list[float]:
    """End to end, by turn."""
    return [turn[way].tokens_per_second for turn in turns]


def _steady_speeds(turns: Sequence[RunsByWay], way: str) -> list[float]:
    """In the steady state, by turn; empty where one has none, or the way was not run."""
    found = [turn[way].steady.tokens_per_second for turn in turns if way in turn]
    return found if found and all(found) else []


def _ratio(turns: Sequence[RunsByWay], ours: str, theirs: str | None) -> Interval | None:
    if theirs is None:
        return None
    pair = _steady_speeds(turns, ours), _steady_speeds(turns, theirs)
    return Interval.of_ratio_by_student(*pair) if all(pair) else None


def _law(turns: Sequence[RunsByWay]) -> SpeedupLaw | None:
    """The terms of the law by the seconds of the rounds; None where a way has no steady state."""
    ours, plain = (SteadyRounds.total(turn[way].steady for turn in turns) for way in (SPECULATIVE, PLAIN))
    if not (ours.rounds and plain.target_seconds):
        return None
    unit = plain.target_seconds / plain.rounds
    outside = ours.seconds - ours.target_seconds - ours.draft_seconds
    end_to_end = [_geometric_mean(_speeds(turns, way)) for way in (SPECULATIVE, PLAIN)]
    return SpeedupLaw(
        tau=ours.committed / ours.requests,
        v=ours.target_seconds / ours.rounds / unit,
        c=_share(ours.draft_seconds, ours.draft_passes) / unit,
        delta=ours.draft_passes / ours.rounds,
        h=outside / ours.rounds / unit,
        h0=(plain.seconds - plain.target_seconds) / plain.rounds / unit,
        measured=end_to_end[0] / end_to_end[1],
        decoding=ours.tokens_per_second / plain.tokens_per_second,
    )


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
