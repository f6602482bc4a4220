from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Tensor
from drafttree.core.tree import Layer
from drafttree.policies.base import TreePolicy, best_mask


class Eagle(TreePolicy):
    """Expand the best `top_k` nodes of every level, then keep the best of all candidates: EAGLE-2 and EAGLE-3.

    The authors' code counts one level less: its `depth=7` is 8 drafted levels. `budget` is its `total_token`.
    """

    source: ClassVar[str] = "EAGLE-2 (Li et al. 2024), section 4; EAGLE-3 code"
    reranks: ClassVar[bool] = True

    depth: int = Field(default=8, ge=1, le=64, description="drafted levels")
    top_k: int = Field(default=10, ge=1, le=256, description="nodes expanded per level, and candidates of each")
    budget: int = Field(default=60, ge=1, le=4096, description="nodes of the final tree, root included")

    @property
    def fixed_shape(self) -> bool:
        return True

    def candidates(self, depth: int) -> int:
        return self.top_k

    def most_kept(self, depth: int) -> int:
        return self.top_k if depth == 1 else self.top_k**2

    def most_expanded(self, depth: int) -> int:
        return self.top_k

    def levels(self) -> int:
        return self.depth

    def keep(self, layer: Layer) -> Tensor:
        return layer.possible

    def expand(self, layer: Layer) -> Tensor | None:
        if layer.depth == 1:
            return None
        return best_mask(layer.path_logprobs, layer.possible, self.top_k)
