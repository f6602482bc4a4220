from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from drafttree.tree import Proposal
from drafttree.verifiers.base import Outlook, SamplingVerifier, ratio, without


class Traversal(SamplingVerifier):
    """Judge leaves first, whole paths at once: Traversal Verification.

    A node's rate is the probability to accept its whole path. A leaf that is accepted takes its path with it; a
    rejected one is cut off, its parent's rows become what is left of them, and the parent, once childless, is a leaf.
    Accepts at least as many tokens as `RRSw` on the same tree.
    """

    source: ClassVar[str] = "Traversal Verification (arXiv 2505.12398), Algorithm 3 and equations 1 to 3"
    proposal: ClassVar[Proposal] = Proposal.SAMPLED

    def judge(self, outlook: Outlook) -> tuple[list[int], int]:
        chain = [_Node(outlook, 0, 1.0)]
        while True:
            leaf = chain[-1]
            if leaf.children:
                chain.append(leaf.child(outlook, leaf.children.pop(0)))
            elif leaf.index == 0 or outlook.noise.accept(leaf.rate):
                return [node.index for node in chain], outlook.noise.draw(leaf.target)
            else:
                chain.pop()
                chain[-1].reject(outlook.tokens[leaf.index])


@dataclass
class _Node:
    """A node of the chain under judgement, with its rows and rate as they are by now."""

    index: int
    rate: float
    target: Tensor
    draft: Tensor | None
    children: list[int]

    def __init__(self, outlook: Outlook, index: int, rate: float) -> None:
        self.index, self.rate = index, rate
        self.children = list(outlook.children[index])
        self.target = outlook.target(index)
        self.draft = outlook.draft(index) if self.children else None

    def child(self, outlook: Outlook, index: int) -> "_Node":
        """Equation 1: the child's rate from this node's current rate and rows."""
        token = outlook.tokens[index]
        assert self.draft is not None
        return _Node(outlook, index, min(self.rate * ratio(self.target, self.draft, token), 1.0))

    def reject(self, token: int) -> None:
        """Equations 2 and 3: the rows and the rate after the child with this token has been cut off."""
        assert self.draft is not None
        left = (self.rate * self.target - self.draft).clamp_min_(0)
        mass = float(left.sum())
        if mass > 0:
            self.target = left / mass
        self.rate = mass / (mass + (1 - self.rate)) if mass > 0 else 0.0
        self.draft = without(self.draft, token)
