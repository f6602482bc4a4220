import math
from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Array
from drafttree.core.tree import Layer
from drafttree.policies.base import TreePolicy, best_mask


class Talon(TreePolicy):
    """Spend a node budget where the draft is sure: deep when it is confident, wide when it is not.

    Level 1 takes the `width` best tokens. Every later level keeps the candidates whose path probability is at least
    `margin` times that of the level's best, until the budget is spent. The first `robust` levels take the `width` best
    candidates of the whole level instead. The paper's section 6.4.1 and figure 7 compare values from 0 to 3.
    """

    source: ClassVar[str] = "TALON (arXiv 2601.07353), equations 4 and 5"

    width: int = Field(default=10, ge=1, le=4096, description="nodes of a robust level (K)")
    margin: float = Field(
        default=0.03, ge=0, le=1, description="share of the level's best path probability that a node must reach (mu)"
    )
    robust: int = Field(default=1, ge=0, le=3, description="first levels that take the `width` best candidates (k)")
    depth: int | None = Field(
        default=None, ge=1, le=4096, description="maximum number of drafted levels; no limit in the paper"
    )
    budget: int = Field(default=60, ge=1, le=4096, description="nodes of the tree, root included (N)")

    def levels(self) -> int | None:
        return self.depth

    def candidates(self, depth: int) -> int:
        return self.width if depth <= self.robust else max(self.budget - 1, 1)

    def keep(self, layer: Layer) -> Array:
        if layer.depth <= self.robust:
            return layer.possible if layer.depth == 1 else best_mask(layer.path_logprobs, layer.possible, self.width)
        if not self.margin:
            return layer.possible
        return layer.path_logprobs >= layer.path_logprobs.max() + math.log(self.margin)
