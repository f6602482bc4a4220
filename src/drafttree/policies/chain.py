from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Array
from drafttree.core.tree import Layer
from drafttree.policies.base import TreePolicy


class Chain(TreePolicy):
    """Linear speculation: the drafter's best token, then its best token after that, and so on.

    Source: Leviathan et al. 2023 and Chen et al. 2023; the "SD" and "linear" baselines of TALON and DynaTree.
    """

    source: ClassVar[str] = "Leviathan et al. 2023, Algorithm 1"

    depth: int = Field(default=5, ge=1, le=256, description="tokens drafted per round (K)")
    budget: int = Field(default=257, ge=1, le=4096, description="maximum number of nodes, root included")

    @property
    def branches(self) -> bool:
        return False

    @property
    def is_chain(self) -> bool:
        return type(self) is Chain  # a subclass may keep and expand in another way

    def candidates(self, depth: int) -> int:
        return 1

    def levels(self) -> int:
        return self.depth

    def keep(self, layer: Layer) -> Array:
        return layer.possible
