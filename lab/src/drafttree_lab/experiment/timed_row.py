"""Decoding timed by turns: a few policies and plain decoding on the prompts of one row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.metrics import Metrics
from drafttree.engine.speedup_law import LimitingFactor
from drafttree.evaluation.estimate import Estimate
from drafttree.evaluation.method import PLAIN
from drafttree.evaluation.run_store import RunStore
from drafttree.loading import make_policy
from drafttree_lab.experiment.methods import MethodRow
from drafttree_lab.experiment.race import Outputs, race, totals, way
from drafttree_lab.experiment.round_counts import RoundTerms

AUTO = "auto"
RIVALS = ("chain", "dynatree", "talon:budget=8,width=3", "talon:budget=16,width=4")
"""What people would set by hand: `auto` is meant to come close to the best of them everywhere."""


@dataclass(frozen=True)
class TimedRow:
    """What was timed on the prompts of one row; all speeds are of decoding, prompts left out.

    Attributes:
        best: the policy that `auto` is compared with, the best of the counted ones.
        rows: rows of plain decoding and every policy.
        over_plain: the gain over plain decoding by policy, over prompts and repeats.
        over_best: the gain of `auto` over `best`.
        limit: the term of the law that limits `auto` most.
    """

    best: str
    rows: dict[str, MethodRow]
    over_plain: dict[str, Estimate]
    over_best: Estimate
    limit: str

    @property
    def over_rivals(self) -> float:
        """Speed of `auto` in that of the fastest of `RIVALS` in these very turns, which the comparison thus favours."""
        speeds = {name: 1 + gain.mean for name, gain in self.over_plain.items()}
        return speeds[AUTO] / max(speeds[name] for name in RIVALS if name in speeds)

    @property
    def shortfall(self) -> str:
        """The term that explains most of why the best policy is faster than `auto`."""
        own, better = (RoundTerms.of(self.rows[name].law) for name in (AUTO, self.best))
        return own.shortfall(better)


def time_row(
    decoder: Decoder,
    costs: CostCurve,
    prompts: Sequence[Sequence[int]],
    best: str,
    *,
    repeats: int,
    options: Mapping[str, Any],
) -> TimedRow:
    """Time plain decoding, `auto`, the best policy and `RIVALS` by turns.

    Args:
        decoder: a decoder with a drafter.
        costs: costs that `auto` weighs.
        prompts: token ids.
        best: the specification of the policy `auto` is compared with.
        repeats: times everything runs, after a warm-up.
        options: as for `Decoder.new_request`.
    """
    ways: dict[str, Callable] = {PLAIN: way(decoder.plain(), options)}
    ways[AUTO] = learning_way(decoder, costs, prompts[0], options)
    ways |= {spec: way(decoder.with_policy(make_policy(spec)), options) for spec in dict.fromkeys((best, *RIVALS))}
    runs = race(ways, prompts, repeats, lambda _: None, RunStore())
    chosen = [True] * len(prompts)
    rows = {name: MethodRow.of(name, "all", chosen, runs) for name in ways}
    auto = Metrics.total(totals(AUTO, chosen, runs))
    return TimedRow(
        best=best,
        rows=rows,
        over_plain={name: speed_gain(runs, name, PLAIN) for name in ways if name != PLAIN},
        over_best=speed_gain(runs, AUTO, best),
        limit=LimitingFactor.of(rows[AUTO].law, auto).factor,
    )


def learning_way(
    decoder: Decoder, costs: CostCurve, first: Sequence[int], options: Mapping[str, Any]
) -> Callable[[Sequence[int]], Generation]:
    """Generating by `auto`, which learns from text to text, and knows nothing yet whenever it is given the first."""
    decoder = decoder.with_policy(make_policy(AUTO))
    current = decoder

    def generate(prompt: Sequence[int]) -> Generation:
        nonlocal current
        if prompt == first:
            current = decoder.with_costs(costs)
        return current.generate(list(prompt), **options)

    return generate


def speed_gain(runs: Sequence[Sequence[Outputs]], name: str, base: str) -> Estimate:
    """The gain in decoding speed of one way over another, over prompts and repeats."""
    times = [[_seconds_per_token(turn[each].metrics) for run in runs for turn in run] for each in (base, name)]
    return Estimate.of_gain(*times)


def _seconds_per_token(metrics: Metrics) -> float:
    return 1 / metrics.decoding_tokens_per_second
