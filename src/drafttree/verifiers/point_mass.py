from typing import ClassVar

from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView


class PointMass(SamplingVerifier):
    """Draw from the target at every node and descend while the token is in the tree.

    Lossless for every tree whose growth did not look at this verifier's randomness; the one to use on selected trees
    (EAGLE-2/3, TALON, OPT-Tree, DynaTree) without a shared seed.
    """

    source: ClassVar[str] = "SpecInfer's naive walk; EAGLE-2's rejection of point masses has the same law"
    proposal: ClassVar[Proposal] = Proposal.TOP_K
    accepts: ClassVar[frozenset[Proposal]] = frozenset(Proposal)

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        path = [0]
        while True:
            token = view.randomness.draw(view.target(path[-1]))
            child = view.child(path[-1], token)
            if child is None:
                return path, token
            path.append(child)
