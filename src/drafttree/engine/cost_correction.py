"""Notices that a cost curve is wrong, from the rounds of texts, and mends it without measuring anew."""

import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.cost_measurement import WRONG_BY
from drafttree.engine.metrics import Round

FEWEST = 8
"""Rounds from which a part is judged."""
TARGET, DRAFTING = attrgetter("target_seconds"), attrgetter("drafting_seconds")


def corrected(curve: CostCurve, rounds: Sequence[Round]) -> CostCurve | None:
    """A curve that agrees with rounds, None where this one does or there are too few of them.

    A machine that has become slower or faster as a whole makes no curve wrong: only ratios of costs decide.

    Args:
        curve: in seconds.
        rounds: that went by it, without the first of a text, which reads what the prompt has left.
    """
    if len(rounds) < FEWEST:
        return None
    drafted = [turn for turn in rounds if turn.widths]
    plain = [turn for turn in rounds if not turn.widths]
    pace = _ratio(rounds, lambda turn: turn.seconds, lambda turn: curve.round(turn.nodes, turn.widths, turn.source))

    def factor(part: Sequence[Round], spent: Callable[[Round], float], costs: Callable[[Round], float]) -> float:
        found = _ratio(part, spent, costs) / pace if len(part) >= FEWEST else 1.0
        return found if abs(found - 1) > WRONG_BY else 1.0

    after = CostCurve(
        target=_target(curve.target, rounds, lambda part: factor(part, TARGET, _target_costs(curve))),
        draft=tuple(
            _scaled(draft, factor([turn for turn in drafted if turn.source == source], DRAFTING, _draft_costs(draft)))
            for source, draft in enumerate(curve.draft)
        ),
        overhead=curve.overhead * factor(drafted, _outside, lambda _: curve.overhead),
        plain_overhead=curve.plain_overhead * factor(plain, _outside, lambda _: curve.plain_overhead),
    )
    return None if after == curve else after


def _target(costs: Costs, rounds: Sequence[Round], factor: Callable[[Sequence[Round]], float]) -> Costs:
    """The costs of target passes, each measured size mended by the rounds up to it; the others by those nearest."""
    buckets: dict[int, list[Round]] = {}
    for turn in rounds:
        place = min(bisect_left(costs.sizes, turn.nodes), len(costs.sizes) - 1)
        buckets.setdefault(place, []).append(turn)
    factors = {place: factor(part) for place, part in buckets.items() if len(part) >= FEWEST}
    if not factors:
        return costs
    nearest = [factors[min(factors, key=lambda known: abs(known - place))] for place in range(len(costs.sizes))]
    return Costs.of({size: cost * own for size, cost, own in zip(costs.sizes, costs.costs, nearest, strict=True)})


def _scaled(draft: DraftCosts, factor: float) -> DraftCosts:
    later = Costs(draft.later.sizes, tuple(cost * factor for cost in draft.later.costs))
    return DraftCosts(draft.first * factor, later)


def _ratio(rounds: Sequence[Round], spent: Callable[[Round], float], costs: Callable[[Round], float]) -> float:
    """The median of what was spent over what the curve says; 1 where it says nothing."""
    return statistics.median(spent(turn) / costs(turn) if costs(turn) else 1.0 for turn in rounds) or 1.0


def _target_costs(curve: CostCurve) -> Callable[[Round], float]:
    return lambda turn: curve.target.at(turn.nodes)


def _draft_costs(draft: DraftCosts) -> Callable[[Round], float]:
    return lambda turn: draft.first + sum(map(draft.later.at, turn.widths[1:]))


def _outside(turn: Round) -> float:
    return turn.outside_seconds - (turn.growth_seconds if turn.widths else 0.0)
