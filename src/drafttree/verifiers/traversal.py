from functools import cached_property
from typing import ClassVar

from torch import Tensor

from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, ratio, without


class Traversal(SamplingVerifier):
    """Judge leaves first, whole paths at once: Traversal Verification.

    A node's rate is the probability to accept its whole path. A leaf that is accepted takes its path with it; a
    rejected one is cut off, its parent's rows become what is left of them, and the parent, once childless, is a leaf.
    Accepts at least as many tokens as `RRSw` on the same tree.
    """

    source: ClassVar[str] = "Traversal Verification (arXiv 2505.12398), Algorithm 3 and equations 1 to 3"
    proposal: ClassVar[Proposal] = Proposal.WITHOUT_REPLACEMENT

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        chain = [Node(view, 0, 1.0)]
        while True:
            leaf = chain[-1]
            if leaf.children:
                chain.append(leaf.child(view, leaf.children.pop(0)))
            elif leaf.index == 0 or view.randomness.accept(leaf.rate):
                return [node.index for node in chain], view.randomness.draw(leaf.target)
            else:
                chain.pop()
                chain[-1].reject(view.tokens[leaf.index])


class Node:
    """A node of the chain under judgement, with its rows and rate as they are by now.

    Attributes:
        index: in the tree.
        rate: probability to accept the path to the node.
        children: those not rejected yet; the one under judgement is not among them.
    """

    def __init__(self, view: TreeView, index: int, rate: float) -> None:
        self.index, self.rate = index, rate
        self.children = list(view.children[index])
        self._view = view

    @cached_property
    def target(self) -> Tensor:
        """`[vocab]` of the target; made when it is asked for, since a leaf that is rejected never needs it."""
        return self._view.target(self.index)

    @cached_property
    def draft(self) -> Tensor:
        """`[vocab]` the distribution of the next child."""
        return self._view.draft(self.index)

    def child(self, view: TreeView, index: int) -> "Node":
        """Equation 1: the child's rate from this node's current rate and rows."""
        token = view.tokens[index]
        return Node(view, index, min(self.rate * ratio(self.target, self.draft, token), 1.0))

    def reject(self, token: int) -> None:
        """Equations 2 and 3: the rows and the rate after the child with this token has been cut off."""
        left = (self.rate * self.target).sub_(self.draft).clamp_min_(0)
        mass = float(left.sum())
        if mass > 0:
            self.target = left.div_(mass)
        self.rate = mass / (mass + (1 - self.rate)) if mass > 0 else 0.0
        if self.children:
            self.draft = without(self.draft, token)
