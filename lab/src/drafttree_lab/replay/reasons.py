"""Explains why one of two methods is ahead: by a term of the speed-up law, or of the tokens per round."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

import numpy as np

from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.replay.measured import SPEEDS
from drafttree_lab.replay.paper import Metric
from drafttree_lab.replay.text_cell import TextCounts, TextTimes

PROGRESS: frozenset[Metric] = frozenset({"tau", "path", "rounds", "drafted_share"})
EXPLAINED = SPEEDS | PROGRESS
"""Metrics that can be explained by their terms."""


@dataclass(frozen=True)
class RoundTerms:
    """Means per round of a method; costs are in units of a round of plain decoding.

    Attributes:
        tau: number of committed tokens.
        levels: number of drafted levels.
        accepted: number of accepted tokens.
        nodes: number of nodes of the target pass.
        target: v(n), the cost of the target pass.
        draft: c delta, the cost of the draft passes.
        rest: h, the cost of the round outside the passes.
    """

    tau: float
    levels: float
    accepted: float
    nodes: float
    target: float
    draft: float
    rest: float

    @property
    def cost(self) -> float:
        """The cost of a round."""
        return self.target + self.draft + self.rest

    @property
    def told_speed(self) -> str:
        """The terms of the speed-up law in words."""
        terms = f"tau {self.tau:.2f}, v {self.target:.2f} over {self.nodes:.0f} nodes, c delta {self.draft:.2f}"
        return f"{terms}, h {self.rest:.2f}" if self.rest else terms

    @property
    def told_progress(self) -> str:
        """The terms of the tokens per round in words."""
        return f"{self.levels:.2f} levels a round, {self.accepted:.2f} accepted"


class RoundSums:
    """Sums over the rounds of some texts."""

    def __init__(self) -> None:
        self._progress = np.zeros(5)  # rounds, committed tokens, levels, accepted tokens, nodes
        self._costs = np.zeros(4)  # target passes, draft passes, the rest, as many rounds of plain decoding

    def add(self, counts: TextCounts) -> None:
        """Add the counts of a text."""
        sums = map(sum, (counts.committed, counts.levels, counts.accepted, counts.nodes))
        self._progress += len(counts.committed), *sums

    def add_costs(self, counts: TextCounts, costs: PassCosts) -> None:
        """Add the costs of a text's rounds at given pass costs."""
        rounds = len(counts.committed)
        target = sum(map(costs.target.at, counts.nodes))
        self._costs += target, costs.draft * sum(counts.passes), costs.round * rounds, rounds

    def add_times(self, counts: TextCounts, turns: Iterable[tuple[TextTimes, TextTimes]]) -> None:
        """Add the measured times of a text's rounds.

        Args:
            counts: the counts of the text.
            turns: of each turn, the times of the text and those of plain decoding.
        """
        rounds = len(counts.committed)
        passes = sum(counts.passes)
        for way_times, plain in turns:
            self._costs += (
                way_times.target_pass * rounds,
                way_times.draft_pass * passes,
                way_times.overhead * rounds,
                plain.target_pass * rounds,
            )

    def terms(self) -> RoundTerms:
        """The means; costs that were not added are 0."""
        rounds, *progress = self._progress.tolist()
        *costs, plain = self._costs.tolist()
        return RoundTerms(*(total / rounds for total in progress), *(total / (plain or 1.0) for total in costs))


def explain(metric: Metric, terms: Mapping[str, RoundTerms], *, is_ahead: bool) -> str:
    """A line with the terms of some methods; for two methods, also why the first is ahead or behind.

    Args:
        metric: one of `EXPLAINED`.
        terms: the terms by method.
        is_ahead: whether the first method is ahead of the second.
    """
    is_speed = metric in SPEEDS
    clauses = []
    for name, method_terms in terms.items():
        clauses.append(f"{name}: {method_terms.told_speed if is_speed else method_terms.told_progress}")
    summary = "; ".join(clauses)
    if len(terms) != 2:
        return summary
    first_terms, second_terms = terms.values()
    contributions = (
        _speed_contributions(first_terms, second_terms)
        if is_speed
        else _progress_contributions(first_terms, second_terms)
    )
    if not contributions:
        return summary
    decisive_term = max(contributions, key=lambda name: contributions[name] if is_ahead else -contributions[name])
    return f"{decisive_term} decides ({summary})"


def _speed_contributions(terms: RoundTerms, rival_terms: RoundTerms) -> dict[str, float]:
    """What each term of R = tau / (v + c delta + h) contributes to the logarithm of R over the rival's R, roughly."""
    cost = (terms.cost + rival_terms.cost) / 2
    return {
        "tau": log(terms.tau / rival_terms.tau),
        "v(n)": (rival_terms.target - terms.target) / cost,
        "c delta": (rival_terms.draft - terms.draft) / cost,
        "h": (rival_terms.rest - terms.rest) / cost,
    }


def _progress_contributions(terms: RoundTerms, rival_terms: RoundTerms) -> dict[str, float]:
    """What each factor of the accepted tokens contributes to the logarithm of their ratio to the rival's.

    Empty if a method drafts nothing, or nothing is accepted.
    """
    if not (terms.levels and terms.accepted and rival_terms.levels and rival_terms.accepted):
        return {}
    levels = log(terms.levels / rival_terms.levels)
    share = log(terms.accepted / rival_terms.accepted) - levels
    return {"the accepted share": share, "the number of levels": levels}
