from typing import ClassVar

from drafttree.core.lazy import Tensor
from drafttree.core.tree import Proposal
from drafttree.verifiers.base import TreeView, without
from drafttree.verifiers.rejection import SiblingRejection


class PointMass(SiblingRejection):
    """Accept a child with the target's probability of its token; a rejected token is removed from the target.

    This equals drawing from the target at every node, and going down while the drawn token is in the tree. It is
    lossless for every tree that grew without this verifier's random numbers. Use it on top-k trees (EAGLE-2/3, TALON,
    OPT-Tree, DynaTree) without a shared seed.
    """

    source: ClassVar[str] = "SpecInfer's naive walk; EAGLE-2's rejection of point masses has the same law"
    proposal: ClassVar[Proposal] = Proposal.TOP_K
    accepts: ClassVar[frozenset[Proposal]] = frozenset(Proposal)

    def proposed(self, view: TreeView, node: int) -> Tensor:
        return view.target(node)

    def chance(self, p: Tensor, q: Tensor, token: int) -> Tensor:
        return p[token]

    def reject(self, p: Tensor, q: Tensor, token: int) -> tuple[Tensor, Tensor]:
        return without(p, token), q
