"""Costs of passes in units of a target pass over one token: published, measured, or given."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from drafttree.core.cost_curve import Costs
from drafttree.core.errors import ConfigError
from drafttree_lab.replay.intervals import Fraction
from drafttree_lab.replay.paper import Metric, Model
from drafttree_lab.replay.text_cell import TextCounts

PUBLISHED, MEASURED = "published", "measured"
LAW = "tau (1 + h0) / (v + c delta + h)"
"""The speed-up R. A paper's costs are in rounds of plain decoding, so h0 is 0."""
GIVEN = re.compile(r"c=(?P<c>\d*\.?\d+),v=(?P<v>\d*\.?\d+)")
DRAWS = 500
"""Number of costs that are drawn from those that a paper's rows allow."""


@dataclass(frozen=True)
class PassCosts:
    """The costs of a method's passes, in units of a target pass over one token.

    Attributes:
        draft: c, the cost of a draft pass; an array for drawn costs.
        target: v(n), the cost of a target pass by its number of nodes.
        round: h, the cost of a round outside its passes; an array for drawn costs.
    """

    draft: float
    target: Costs
    round: float = 0.0

    def total(self, counts: TextCounts) -> float:
        """The cost of a text: the denominator of R = tau / (v + c delta + h), times its rounds."""
        rounds = self.round * len(counts.nodes)
        return _target_cost(self.target, tuple(counts.nodes)) + self.draft * sum(counts.passes) + rounds

    def fraction(self, metric: Metric, counts: TextCounts) -> Fraction:
        """Numerator and denominator of a metric of `COUNTED`, in passes instead of seconds."""
        tokens = sum(counts.committed)
        cost = self.total(counts)
        return (tokens, cost) if metric == "tokens_per_second" else (cost, tokens)


@lru_cache(1 << 16)  # called with every text for many claims
def _target_cost(target: Costs, nodes: tuple[int, ...]) -> float:
    return sum(map(target.at, nodes))


def published_costs(model: Model, role: str | None) -> PassCosts | None:
    """A paper's pass costs for the drafter of a role, without drafts for None. None if the paper does not give them."""
    target = Costs.of(model.target_pass)
    if role is None:
        return PassCosts(0.0, target)
    return PassCosts(model.draft_pass[role], target, model.round) if role in model.draft_pass else None


def draw_published_costs(model: Model, role: str | None) -> PassCosts | None:
    """Random costs c and h that agree with a paper's rows of chains and their printed errors; None without errors.

    A round of chains of depth d costs v(d + 1) + c d + h. The costs of rounds are drawn around the printed ones and
    solved for c and h. Draws with a negative c or h are dropped.

    Raises:
        ConfigError: nearly all draws are dropped.
    """
    if not model.rounds:
        return None
    target = Costs.of(model.target_pass)
    generator = np.random.default_rng(0)
    deviations: Any = generator.standard_t(model.samples - 1, (2, 20 * DRAWS))
    costs = [
        row.cost + row.error * deviation - target.at(row.nodes)
        for row, deviation in zip(model.rounds, deviations, strict=False)
    ]
    depth, *other_depths = (row.nodes - 1 for row in model.rounds)
    if other_depths:
        draft = (costs[0] - costs[1]) / (depth - other_depths[0])
        round_cost = costs[0] - depth * draft
    else:
        round_cost = model.round + model.round_error * deviations[1]
        draft = (costs[0] - round_cost) / depth
    allowed = np.flatnonzero((draft >= 0) & (round_cost >= 0))[:DRAWS]
    if allowed.size < DRAWS:
        raise ConfigError("these rows give a negative c or h; check their costs and errors, and target_pass")
    are_paid = float(role is not None)
    return PassCosts(are_paid * draft[allowed], target, are_paid * round_cost[allowed])


@dataclass(frozen=True)
class CostSource:
    """The source of the costs by which counts are judged.

    Attributes:
        name: value of the option --cost.
        given: the costs of all methods that draft, if the option gives them.
    """

    name: str
    given: PassCosts | None = None

    @classmethod
    def parse(cls, text: str) -> "CostSource":
        """Parse "published", "measured" or costs such as "c=0.08,v=1.2".

        Raises:
            ConfigError: the text is not one of these.
        """
        if text in (PUBLISHED, MEASURED):
            return cls(text)
        if match := GIVEN.fullmatch(text.replace(" ", "")):
            return cls(text, PassCosts(float(match["c"]), Costs((1,), (float(match["v"]),))))
        raise ConfigError(f'--cost is {text!r}; give "published", "measured" or such as "c=0.08,v=1.2"')


BY_PAPER = CostSource(PUBLISHED)
