import math
from collections.abc import Sequence
from typing import ClassVar

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Layer, Proposal
from drafttree.policies.auto_sampled import AutoSampled
from drafttree.policies.auto_state import AutoState
from drafttree.policies.base import TreePolicy, best_mask
from drafttree.policies.calibration import next_level
from drafttree.policies.cost_aware import CostAware
from drafttree.policies.tree_value import best_size, best_width

LEAST_LOGPROB = math.log(0.002)
"""Log-probability of acceptance below which a node is never kept, however cheap it is."""


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
        scores = layer.parent_scores[..., None] + torch.stack(own)
        return scores.masked_fill(~layer.possible, -torch.inf)

    def keep(self, layer: Layer) -> Tensor:
        return layer.scores >= LEAST_LOGPROB

    def expand(self, layer: Layer) -> Tensor:
        """The most probable kept candidates, as many as are worth their draft pass."""
        earlier, kept = layer.tree.scores[:, 1:].tolist(), layer.scores.flatten(1).tolist()
        widths = [self._width(layer, *each) for each in zip(layer.states, kept, earlier, strict=True)]
        # Many scores are equal, being rates of cells, so a score to expand from would not bound the width.
        return best_mask(layer.scores, self.keep(layer), torch.tensor(widths, device=layer.scores.device)[:, None])

    def _width(self, layer: Layer, state: AutoState, kept: list[float], earlier: list[float]) -> int:
        """How many candidates of one tree are expanded."""
        best = sorted((score for score in kept if score >= LEAST_LOGPROB), reverse=True)[: self.budget - 1]
        leaves = list(map(math.exp, best))
        return best_width(
            leaves,
            [*map(math.exp, earlier), *leaves],
            next_level(state.calibration(layer.source).children, layer.depth),
            state.costs.target.up_to(self.budget),
            state.draft_costs(layer.source).later,
            state.rate,
        )

    def sizes(self, scores: Tensor, states: Sequence[AutoState]) -> list[int]:
        chances = scores[:, 1:].exp().sort(descending=True).values.tolist()
        return [
            best_size(own, state.costs.target.up_to(self.budget), state.rate)[0]
            for own, state in zip(chances, states, strict=True)
        ]
