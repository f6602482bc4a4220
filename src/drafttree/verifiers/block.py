from itertools import pairwise
from typing import ClassVar

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, ratio


class Block(SamplingVerifier):
    """Judge a drafted chain as one block: accepts at least as many tokens as judging it token by token."""

    source: ClassVar[str] = "Block Verification (Sun et al. 2024), Algorithm 2"
    proposal: ClassVar[Proposal] = Proposal.WITHOUT_REPLACEMENT
    chains_only: ClassVar[bool] = True

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        chain = [0]
        while view.children[chain[-1]]:
            chain.append(view.children[chain[-1]][0])
        # Per node, the probability to accept the block up to it, and the weights from which the bonus would be drawn.
        rate = torch.ones(())
        thresholds = list[Tensor]()
        bonus_weights = list[Tensor]()
        for node, child in pairwise(chain):
            target, draft = view.target(node), view.draft(node)
            residual = (rate * target).sub_(draft).clamp_min_(0)
            mass = residual.sum()
            thresholds.append(torch.where(mass > 0, mass / (mass + (1 - rate)), 0.0))
            bonus_weights.append(torch.where(mass > 0, residual, target))
            rate = (rate * ratio(target, draft, view.tokens[child])).clamp_max(1.0)
        accepted_length = 0
        for position, threshold in enumerate(view.read([*thresholds, rate][1:]), start=1):
            if view.randomness.accept(threshold):
                accepted_length = position
        return chain[: accepted_length + 1], view.draw([*bonus_weights, view.target(chain[-1])][accepted_length])
