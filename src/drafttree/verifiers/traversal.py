from functools import cached_property
from typing import ClassVar

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, normalise, ratio, without


class Traversal(SamplingVerifier):
    """Judge leaves first, whole paths at once: Traversal Verification.

    A node's rate is the probability to accept its whole path. An accepted leaf accepts its path. A rejected leaf is cut
    off, and its parent's distributions become the residual ones. A parent that has lost all children is then a leaf.
    Accepts at least as many tokens as `RRSw` on the same tree.
    """

    source: ClassVar[str] = "Traversal Verification (arXiv 2505.12398), Algorithm 3 and equations 1 to 3"
    proposal: ClassVar[Proposal] = Proposal.WITHOUT_REPLACEMENT

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        judgements = traverse(view)
        rates = view.read([leaf.rate for _, leaf in judgements])
        for (path, leaf), rate in zip(judgements, rates, strict=True):
            if leaf.index == 0 or view.randomness.accept(rate):
                return path, view.draw(leaf.target)
        raise AssertionError("the root ends every traversal")


def traverse(view: TreeView) -> list[tuple[list[int], "ChainNode"]]:
    """Every leaf in the order of judgement, with its path, given that all leaves before it are rejected.

    The traversal ends with the first accepted leaf. So nothing in it depends on a random number, and the rates of all
    leaves can be read at once.
    """
    chain = [ChainNode(view, 0, torch.ones(()))]
    judgements = []
    while chain:
        leaf = chain[-1]
        if leaf.children:
            chain.append(leaf.child(leaf.children.pop(0)))
            continue
        judgements.append(([node.index for node in chain], leaf))
        chain.pop()
        if chain:
            chain[-1].reject(view.tokens[leaf.index])
    return judgements


class ChainNode:
    """A node of the path that is being judged, with its current distributions and rate.

    Attributes:
        index: the node's index in the tree.
        rate: probability to accept the path to the node, a number on the device.
        children: children that are not judged yet.
    """

    def __init__(self, view: TreeView, index: int, rate: Tensor) -> None:
        self.index = index
        self.rate = rate
        self.children = list(view.children[index])
        self._view = view

    @cached_property
    def target(self) -> Tensor:
        """`[vocab]` the target's distribution, computed on first use, since a rejected leaf does not need it."""
        return self._view.target(self.index)

    @cached_property
    def draft(self) -> Tensor:
        """`[vocab]` the distribution of the next child."""
        return self._view.draft(self.index)

    def child(self, index: int) -> "ChainNode":
        """Equation 1: the child's rate from this node's current rate and distributions."""
        rate = (self.rate * ratio(self.target, self.draft, self._view.tokens[index])).clamp_max(1.0)
        return ChainNode(self._view, index, rate)

    def reject(self, token: int) -> None:
        """Equations 2 and 3: the distributions and the rate after the child with this token has been cut off."""
        residual = (self.rate * self.target).sub_(self.draft).clamp_min_(0)
        mass = residual.sum()
        self.target = normalise(residual, self.target)
        self.rate = torch.where(mass > 0, mass / (mass + (1 - self.rate)), 0.0)
        if self.children:
            self.draft = without(self.draft, token)
