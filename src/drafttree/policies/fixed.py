import math
from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Array
from drafttree.core.tree import Layer
from drafttree.policies.base import TreePolicy, creation_scores


class Fixed(TreePolicy):
    """A tree of fixed depth and breadth that does not expand improbable nodes: DynaTree, first version.

    The paper drafts its root as the drafter's single best token, and counts depth D from there. Its tree has
    `level1_top1=True`, `depth` D + 1 and `budget` N_max + 1, since our budget counts the committed token too. If a
    level exceeds the budget, its most probable candidates are kept; `first_come=True` keeps the first ones, as the
    paper does.
    """

    source: ClassVar[str] = "DynaTree v1, Algorithm 1"

    depth: int = Field(default=8, ge=1, le=64, description="drafted levels (D)")
    breadth: int = Field(default=3, ge=1, le=64, description="children of every expanded node (B)")
    threshold: float = Field(
        default=0.03, ge=0, le=1, description="lowest path probability of a node that is expanded (tau)"
    )
    level1_top1: bool = Field(default=False, description="draft only the best token on level 1")
    first_come: bool = Field(default=False, description="spend the budget in order of creation, as the paper does")
    budget: int = Field(default=128, ge=1, le=4096, description="maximum number of nodes, root included (N_max)")

    def candidates(self, depth: int) -> int:
        return 1 if self.level1_top1 and depth == 1 else self.breadth

    def levels(self) -> int:
        return self.depth

    def keep(self, layer: Layer) -> Array:
        return layer.rank < self.candidates(layer.depth)

    def expand(self, layer: Layer) -> Array | None:
        return layer.path_logprobs >= math.log(self.threshold) if self.threshold else None

    def score(self, layer: Layer) -> Array:
        return creation_scores(layer) if self.first_come else layer.path_logprobs
