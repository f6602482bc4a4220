"""What passes cost, in passes of the target over one token: by the paper, as timed here, or any other."""

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
"""The speed-up R. A paper's costs are in rounds of plain decoding, so that h0 = 0 and the denominator decides."""
GIVEN = re.compile(r"c=(?P<c>\d*\.?\d+),v=(?P<v>\d*\.?\d+)")
DRAWS = 500
"""Costs that are drawn of those which a paper's rows allow."""


@dataclass(frozen=True)
class PassCosts:
    """What the passes of a method cost, in passes of the target over one token; arrays where they are drawn.

    Attributes:
        draft: c, the cost of a draft pass.
        target: v(n), the cost of a target pass by its nodes.
        round: h, the cost of a round beside its passes.
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


@lru_cache(1 << 16)  # of every text it is asked for many claims
def _target_cost(target: Costs, nodes: tuple[int, ...]) -> float:
    return sum(map(target.at, nodes))


def published_costs(model: Model, role: str | None) -> PassCosts | None:
    """What the passes of a method cost by a paper, None where it does not tell it; without a role nothing drafts."""
    target = Costs.of(model.target_pass)
    if role is None:
        return PassCosts(0.0, target)
    return PassCosts(model.draft_pass[role], target, model.round) if role in model.draft_pass else None


def draw_published_costs(model: Model, role: str | None) -> PassCosts | None:
    """Costs that the paper's rows of chains allow, by the errors that they are printed with; None without errors.

    A row of depth d costs v(d + 1) + c d + h a round. What a draw of these costs says of c and h is taken unless one
    of them is negative.

    Raises:
        ConfigError: they nearly all say so.
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
        raise ConfigError("by these rows c or h is negative; see to their costs and errors, and to target_pass")
    are_paid = float(role is not None)
    return PassCosts(are_paid * draft[allowed], target, are_paid * round_cost[allowed])


@dataclass(frozen=True)
class CostSource:
    """Where the costs come from by which counts are judged.

    Attributes:
        name: as the option has it.
        given: costs that hold for all methods that draft, where they are given.
    """

    name: str
    given: PassCosts | None = None

    @classmethod
    def parse(cls, text: str) -> "CostSource":
        """From "published", "measured" or "c=0.08,v=1.2".

        Raises:
            ConfigError: it is none of these.
        """
        if text in (PUBLISHED, MEASURED):
            return cls(text)
        if match := GIVEN.fullmatch(text.replace(" ", "")):
            return cls(text, PassCosts(float(match["c"]), Costs((1,), (float(match["v"]),))))
        raise ConfigError(f'--cost is {text!r}; give "published", "measured" or such as "c=0.08,v=1.2"')


BY_PAPER = CostSource(PUBLISHED)
