import math
from typing import ClassVar

from drafttree.core.lazy import Array, np
from drafttree.core.tree import Layer
from drafttree.policies.auto_state import AutoState
from drafttree.policies.base import by_sequence
from drafttree.policies.calibration import place_rates
from drafttree.policies.cost_aware import CostAware
from drafttree.policies.tree_value import best_limits

ROUNDING = 1e-4
"""Difference of log-probabilities that rounding may make."""


class AutoSampled(CostAware):
    """The form of `auto` for verifiers whose trees are drawn at random, and for those that judge chains only.

    A drawn node must stay in the tree, so nothing may be cut by what was drawn. Here levels and children are limits
    that follow from the text so far alone, fixed before the first draw: the best tree of a fixed shape, in which the
    child drawn k-th on a level is accepted as often as such children were before.
    """

    source: ClassVar[str] = "as for auto; limits fixed before the draws keep sampled trees lossless"

    @property
    def branches(self) -> bool:
        return self.children > 1

    def score(self, layer: Layer) -> Array:
        """The log-probability that a child of this place and all nodes above it are accepted."""
        width = layer.logprobs.shape[-1]
        rates = [place_rates(state.calibration(layer.source).places, layer.depth, width) for state in layer.states]
        return layer.parent_scores[..., None] + np.log(np.array(rates, dtype=layer.parent_scores.dtype))[:, None]

    def keep(self, layer: Layer) -> Array:
        floors = [self._limits(layer, state)[1] for state in layer.states]
        return layer.scores >= by_sequence(layer, floors)

    def expand(self, layer: Layer) -> Array:
        deeper = [layer.depth < self._limits(layer, state)[0] for state in layer.states]
        return np.array(deeper)[:, None, None]

    def _limits(self, layer: Layer, state: AutoState) -> tuple[int, float]:
        """The levels to draft, and the score from which children are drawn."""
        levels, chance = best_limits(
            tuple(map(tuple, state.calibration(layer.source).places)),
            self.candidates(1),
            self.depth,
            self.budget,
            state.costs.target,
            state.costs.draft_of(layer.source).later,
            state.rate,
        )
        return levels, math.log(chance) - ROUNDING
