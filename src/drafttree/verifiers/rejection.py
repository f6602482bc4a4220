from typing import ClassVar

from torch import Tensor

from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, ratio, residual, without


class RRSw(SamplingVerifier):
    """Recursive rejection sampling over children drawn without replacement.

    A child is accepted with probability min(1, p/q); a rejected one leaves the residual of p, and q without it.
    """

    source: ClassVar[str] = "EAGLE (Li et al. 2024) and Sequoia (Chen et al. 2024), recursive rejection sampling"
    proposal: ClassVar[Proposal] = Proposal.WITHOUT_REPLACEMENT

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        path = [0]
        while children := view.children[path[-1]]:
            p, q = view.target(path[-1]), view.draft(path[-1])
            for child in children:
                token = view.tokens[child]
                if view.randomness.accept(ratio(p, q, token)):
                    path.append(child)
                    break
                p = residual(p, q)
                if child != children[-1]:
                    q = self.after(q, token)
            else:
                return path, view.randomness.draw(p)
        return path, view.randomness.draw(view.target(path[-1]))

    def after(self, q: Tensor, token: int) -> Tensor:
        """The law of the next child once one has been rejected."""
        return without(q, token)


class RRS(RRSw):
    """Recursive rejection sampling over children drawn independently: SpecInfer's multi-step verification."""

    source: ClassVar[str] = "SpecInfer (Miao et al. 2024), multi-step speculative sampling"
    proposal: ClassVar[Proposal] = Proposal.WITH_REPLACEMENT

    def after(self, q: Tensor, token: int) -> Tensor:
        return q
