import math
from collections.abc import Sequence
from typing import ClassVar

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Layer, Proposal
from drafttree.policies.auto_sampled import AutoSampled
from drafttree.policies.auto_state import AutoState
from drafttree.policies.base import TreePolicy, best_mask, by_sequence
from drafttree.policies.calibration import next_level
from drafttree.policies.cost_aware import CostAware
from drafttree.policies.tree_value import best_size, best_width

LEAST_CHANCE = 0.005
"""Probability of acceptance below which a node is never kept, however cheap it is."""


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
        return AutoSampled(depth=self.depth, children=1 if chain else self.children, budget=self.budget)

    def score(self, layer: Layer) -> Tensor:
        """The log-probability that a candidate and all nodes above it are accepted."""
        own = [
            state.calibration(layer.source).log_acceptance(logprobs, layer.depth)
            for state, logprobs in zip(layer.states, layer.logprobs, strict=True)
        ]
        return layer.parent_scores[..., None] + (torch.stack(own) if len(own) > 1 else own[0])

    def keep(self, layer: Layer) -> Tensor:
        """The candidates that could be worth their share of the cheapest target pass."""
        return layer.scores >= by_sequence(layer, [math.log(self._least(state)) for state in layer.states])

    def expand(self, layer: Layer) -> Tensor:
        """The most probable kept candidates, as many as are worth their draft pass."""
        earlier, kept = layer.tree.scores.tolist(), layer.scores.flatten(1).tolist()
        widths = [self._width(layer, *each) for each in zip(layer.states, kept, earlier, strict=True)]
        # Many scores are equal, being rates of cells, so a score to expand from would not bound the width.
        count = widths[0] if len(widths) == 1 else torch.tensor(widths, device=layer.scores.device)[:, None]
        return best_mask(layer.scores, self.keep(layer), count)

    def _width(self, layer: Layer, state: AutoState, kept: list[float], earlier: list[float]) -> int:
        """How many candidates of one tree are expanded."""
        least = math.log(self._least(state))
        best = sorted((score for score in kept if score >= least), reverse=True)[: self.budget - 1]
        leaves = list(map(math.exp, best))
        return best_width(
            leaves,
            [*map(math.exp, earlier[1:]), *leaves],
            next_level(state.calibration(layer.source).children, layer.depth),
            state.costs.target.up_to(self.budget),
            state.draft_costs(layer.source).later,
            state.rate,
        )

    def _least(self, state: AutoState) -> float:
        return max(LEAST_CHANCE, state.rate * state.costs.target.cheapest_node(self.budget))

    def sizes(self, scores: Tensor, states: Sequence[AutoState]) -> list[int]:
        return [
            best_size(sorted(map(math.exp, own[1:]), reverse=True), state.costs.target.up_to(self.budget), state.rate)[
                0
            ]
            for own, state in zip(scores.tolist(), states, strict=True)
        ]
