from typing import ClassVar

from drafttree.core.lazy import Tensor
from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, ratio, residual, without


class SiblingRejection(SamplingVerifier):
    """Base of verifiers that judge the children of a node one after the other, from the root down.

    A child is judged only if all its earlier siblings were rejected. So its probability of acceptance does not depend
    on a random number. The device computes those of all drafted tokens, and they are read in one copy.
    """

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        rejections = {node: self._reject_all(view, node) for node, children in enumerate(view.children) if children}
        numbers = iter(view.read([chance for chances, _ in rejections.values() for chance in chances]))
        chance = {child: next(numbers) for node in rejections for child in view.children[node]}
        path = [0]
        while children := view.children[path[-1]]:
            accepted = next((child for child in children if view.randomness.accept(chance[child])), None)
            if accepted is None:
                return path, view.draw(rejections[path[-1]][1])
            path.append(accepted)
        return path, view.draw(view.target(path[-1]))

    def _reject_all(self, view: TreeView, node: int) -> tuple[list[Tensor], Tensor]:
        """Each child's acceptance probability if all before it are rejected, and the residual target after the last."""
        p, q = view.target(node), self.proposed(view, node)
        chances = []
        for child in view.children[node]:
            token = view.tokens[child]
            chances.append(self.chance(p, q, token))
            p, q = self.reject(p, q, token)
        return chances, p

    def proposed(self, view: TreeView, node: int) -> Tensor:
        """`[vocab]` the distribution of a node's first child."""
        return view.draft(node)

    def chance(self, p: Tensor, q: Tensor, token: int) -> Tensor:
        """The probability to accept a child with this token, a number on the device; 1 or more is certain."""
        return ratio(p, q, token)

    def reject(self, p: Tensor, q: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """The target's distribution and that of the next child, after this child was rejected."""
        raise NotImplementedError


class RRSw(SiblingRejection):
    """Recursive rejection sampling over children drawn without replacement.

    A child is accepted with probability min(1, p/q). After a rejection, p becomes the residual, and q loses the child.
    """

    source: ClassVar[str] = "EAGLE (Li et al. 2024) and Sequoia (Chen et al. 2024), recursive rejection sampling"
    proposal: ClassVar[Proposal] = Proposal.WITHOUT_REPLACEMENT

    def reject(self, p: Tensor, q: Tensor, token: int) -> tuple[Tensor, Tensor]:
        return residual(p, q), without(q, token)


class RRS(SiblingRejection):
    """Recursive rejection sampling over children drawn independently: SpecInfer's multi-step verification."""

    source: ClassVar[str] = "SpecInfer (Miao et al. 2024), multi-step speculative sampling"
    proposal: ClassVar[Proposal] = Proposal.WITH_REPLACEMENT

    def reject(self, p: Tensor, q: Tensor, token: int) -> tuple[Tensor, Tensor]:
        return residual(p, q), q
