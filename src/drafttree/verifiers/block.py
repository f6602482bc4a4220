from typing import ClassVar

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
        best, rate, kept = 0, 1.0, []
        for position, node in enumerate(chain):
            target, last = view.target(node), node == chain[-1]
            draft = target if last else view.draft(node)
            left = target if last else (rate * target).sub_(draft).clamp_min_(0)
            mass = float(left.sum())
            threshold = rate if last else _share(mass, mass + (1 - rate))
            kept.append(left if mass > 0 else target)
            if position and view.randomness.accept(threshold):
                best = position
            if not last:
                rate = min(rate * ratio(target, draft, view.tokens[chain[position + 1]]), 1.0)
        return chain[: best + 1], view.randomness.draw(kept[best])


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
