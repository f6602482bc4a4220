"""The costs at which policies are compared: c of a draft pass, and v(n) of a target pass over n nodes."""

from collections.abc import Iterable
from dataclasses import dataclass

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree_lab.replay.jackknife import Fraction
from drafttree_lab.replay.pass_costs import PassCosts
from drafttree_lab.replay.text_cell import TextCounts

DRAFT_COSTS = (0.01, 0.03, 0.1, 0.2, 0.4)
"""c: the cost of a draft pass in target passes over one node."""
SLOPES = {0.0: "free trees, as in the papers' law", 0.005: "a GPU", 0.02: "between", 0.07: "two CPU cores"}
"""s in v(n) = 1 + s (n - 1), with what it is like."""
GPU = 0.005
"""The slope that the tables of Traversal Verification imply."""


@dataclass(frozen=True)
class GridCosts:
    """What passes cost, in target passes over one node; all else costs nothing.

    Attributes:
        draft: c, of a draft pass of any width.
        slope: s, of a node of a target pass beyond the first.
    """

    draft: float
    slope: float

    def target(self, nodes: int) -> float:
        """v(n), the cost of a target pass over so many nodes."""
        return 1 + self.slope * (nodes - 1)

    def fraction(self, counts: TextCounts) -> Fraction:
        """Tokens of a text, and what its rounds cost; their ratio is R."""
        return self._passes.fraction("tokens_per_second", counts)

    def speedup(self, texts: Iterable[TextCounts]) -> float:
        """R over all texts: tokens by cost, where plain decoding commits one token by one."""
        tokens, costs = zip(*map(self.fraction, texts), strict=True)
        return sum(tokens) / sum(costs)

    @property
    def curve(self) -> CostCurve:
        """The same costs as the policy `auto` takes them."""
        return CostCurve(self._target, (DraftCosts(self.draft, Costs((1,), (self.draft,))),), 0.0, 0.0)

    @property
    def _passes(self) -> PassCosts:
        return PassCosts(self.draft, self._target)

    @property
    def _target(self) -> Costs:
        return Costs((1, 2), (self.target(1), self.target(2)))


def cost_grid() -> list[GridCosts]:
    """All costs of the map, curve after curve."""
    return [GridCosts(draft, slope) for slope in SLOPES for draft in DRAFT_COSTS]


def tau(texts: Iterable[TextCounts]) -> float:
    """Tokens per round over all texts."""
    tokens, rounds = zip(*(each.fraction("tau") for each in texts), strict=True)
    return sum(tokens) / sum(rounds)
