import math
from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Array, np
from drafttree.core.tree import Layer, Proposal
from drafttree.policies.auto_state import AutoState
from drafttree.policies.base import RoundOutcome, TextContext, TreePolicy, by_sequence
from drafttree.policies.calibration import next_level, place_rates
from drafttree.policies.tree_value import best_limits, best_size, best_width

LATER_CHILDREN = 4
"""Children of a node at most below the first level, where a node is seldom probable enough for as many."""
FLAT_CHILDREN = 2, 1
"""Children of a node at most on the first level and below it, where a drafter is flat."""
LOOK_EVERY = 4
"""Rounds of a pause after which it is asked what a drafter expects that can tell: asking takes time too."""
ROUNDING = 1e-4
"""Difference of log-probabilities that rounding may make."""


class CostAware(TreePolicy):
    """Base of the two forms of `auto`: what they know of a text, and when they draft at all."""

    uses_costs: ClassVar[bool] = True

    depth: int = Field(default=24, ge=1, le=256, description="levels drafted at most")
    children: int = Field(default=10, ge=1, le=4096, description="children of a node at most")
    budget: int = Field(default=64, ge=1, le=4096, description="nodes of the tree at most, root included")
    flat: bool = Field(default=False, description="a chain with two nodes on level 1 at most, for flat drafters")

    def candidates(self, depth: int) -> int:
        return min(self.children, max(self.budget - 1, 1))

    def levels(self) -> int:
        return self.depth

    def init_state(self, context: TextContext) -> AutoState:
        return AutoState.begin(context)

    def observe(self, state: AutoState, outcome: RoundOutcome) -> AutoState:
        return state.observe(outcome)

    def wants_draft(self, state: AutoState, session: object) -> bool:
        if state.is_paused and state.model.waiting % LOOK_EVERY:
            return False
        expected = getattr(session, "expected_accepted", None)
        if expected is None:
            return not state.model.waiting
        doubt = 2 if state.balances[0].waiting else 1
        return state.is_worth(expected / doubt)


class Auto(CostAware):
    """The tree that commits most tokens per second by the speed-up law, from measured costs and counted acceptance.

    Every node has a probability of being accepted, which `SurvivalCalibration` counts from what was accepted before.
    With the rate of tokens per second that drafting has reached so far, a level is drafted if its expected tokens are
    worth its draft pass at that rate, and the finished tree is cut to the nodes worth their share of the target pass.
    Rounds draft nothing while drafting has been slower than plain decoding; it is tried again after a while.

    `budget`, `depth` and `children` only bound the work; the costs decide.
    """

    source: ClassVar[str] = "the speed-up law R = tau (1 + h0) / (v + c delta + h), maximised as by Dinkelbach (1967)"
    reranks: ClassVar[bool] = True

    def form_for(self, proposal: Proposal, *, chain: bool) -> TreePolicy:
        if proposal is Proposal.TOP_K and not chain:
            return self
        return AutoSampled(depth=self.depth, children=1 if chain or self.flat else self.children, budget=self.budget)

    def candidates(self, depth: int) -> int:
        first, later = FLAT_CHILDREN if self.flat else (self.children, LATER_CHILDREN)
        return min(super().candidates(depth), first if depth == 1 else later)

    # Lists, not arrays: a level's numbers are few, and cells are looked up one by one.

    def score(self, layer: Layer) -> Array:
        """The log-probability that a candidate and all nodes above it are accepted."""
        parents, logprobs = layer.parent_scores.tolist(), layer.logprobs.tolist()
        scores = [
            [
                state.calibration(layer.source).log_acceptance(own, layer.depth, parent)
                for parent, own in zip(*nodes, strict=True)
            ]
            for state, *nodes in zip(layer.states, parents, logprobs, strict=True)
        ]
        return np.array(scores, dtype=layer.logprobs.dtype)

    def keep(self, layer: Layer) -> Array:
        """The candidates that could be worth their share of the cheapest target pass."""
        return layer.scores >= by_sequence(layer, [math.log(state.least_chance(self.budget)) for state in layer.states])

    def expand(self, layer: Layer) -> Array:
        """The most probable kept candidates, as many as are worth their draft pass."""
        scores, earlier = layer.scores.reshape(len(layer.scores), -1).tolist(), layer.tree.scores.tolist()
        rows = [self._expanded(layer, *each) for each in zip(layer.states, scores, earlier, strict=True)]
        chosen = np.array(rows).reshape(layer.logprobs.shape)
        return chosen & (layer.rank == 0) if self.flat else chosen

    def _expanded(self, layer: Layer, state: AutoState, scores: list[float], earlier: list[float]) -> list[bool]:
        """Which candidates of one tree are expanded, ties to the earlier one."""
        least = state.least_chance(self.budget)
        floor = math.log(least)
        kept = sorted((score for score in scores if score >= floor), reverse=True)[: self.budget - 1]
        leaves = list(map(math.exp, kept))
        width = best_width(
            leaves,
            [*map(math.exp, earlier[1:]), *leaves],
            next_level(state.calibration(layer.source).children, layer.depth),
            state.costs.target.up_to(self.budget),
            state.costs.draft_of(layer.source).later,
            state.rate,
            least,
        )
        if not width:
            return [False] * len(scores)
        last = kept[width - 1]
        ties = width - sum(score > last for score in kept[:width])  # scores are rates of cells, so many are equal
        return [score > last or (score == last and (ties := ties - 1) >= 0) for score in scores]

    def size(self, scores: Sequence[float], state: AutoState) -> int:
        chances = sorted(map(math.exp, scores[1:]), reverse=True)
        return best_size(chances, state.costs.target.up_to(self.budget), state.rate)[0]


class AutoSampled(CostAware):
    """The form of `auto` for verifiers whose trees are drawn at random, and for those that judge chains only.

    A drawn node must stay in the tree, so nothing may be cut by what was drawn. Here levels and children are limits
    that follow from the text so far alone, fixed before the first draw: the best tree of a fixed shape, in which the
    child drawn k-th on a level is accepted as often as such children were before.
    """

    source: ClassVar[str] = "the law of auto, with limits fixed before the draws, which keeps sampled trees lossless"

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
