from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Array
from drafttree.core.tree import Layer, Proposal
from drafttree.policies.base import TreePolicy, best_mask

LATER_CHILDREN = 4
"""Most children of a node below the first level, where nodes are seldom probable enough for more."""
FLAT_CHILDREN = 2, 1
"""Most children of a node on the first level and below it, for a flat drafter."""


class Auto(TreePolicy):
    """The tree that commits most tokens per second by the speed-up law, from measured costs and counted acceptance.

    It grows as wide as its bounds allow, and `drafttree.engine.drafting` narrows it at the rate that drafting reaches.
    A level is drafted if its expected tokens are worth its draft pass. The finished tree is cut to the nodes that are
    worth their share of the target pass. While drafting has been slower than plain decoding, nothing is drafted. Drawn
    trees are limited before the draws, since a drawn node must stay.

    `budget`, `depth` and `children` only bound the work; the costs decide.
    """

    source: ClassVar[str] = "the law R = tau (1 + h0) / (v + c delta + h), solved with Dinkelbach's method (1967)"
    reranks: ClassVar[bool] = True
    uses_costs: ClassVar[bool] = True

    depth: int = Field(default=24, ge=1, le=256, description="maximum number of drafted levels")
    children: int = Field(default=10, ge=1, le=4096, description="maximum number of children per node")
    budget: int = Field(default=64, ge=1, le=4096, description="maximum number of nodes, root included")
    flat: bool = Field(default=False, description="for flat drafters: a chain with up to two nodes on level 1")

    @property
    def branches(self) -> bool:
        return self.children > 1

    def form_for(self, proposal: Proposal, *, chain: bool) -> TreePolicy:
        if chain or (self.flat and proposal is not Proposal.TOP_K):
            return Auto(depth=self.depth, children=1, budget=self.budget)
        return self

    def candidates(self, depth: int) -> int:
        first_children, later_children = FLAT_CHILDREN if self.flat else (self.children, LATER_CHILDREN)
        return min(self.children, max(self.budget - 1, 1), first_children if depth == 1 else later_children)

    def levels(self) -> int:
        return self.depth

    def keep(self, layer: Layer) -> Array:
        return layer.possible

    def expand(self, layer: Layer) -> Array | None:
        if self.flat:
            return layer.rank == 0
        if layer.logprobs.size <= self.budget:
            return None
        return best_mask(layer.path_logprobs, layer.possible, self.budget)  # bounds the work if nothing else limits it
