from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from drafttree.core.lazy import Array
from drafttree.core.tree import Layer
from drafttree.policies.base import TreePolicy, best_mask


class Eagle(TreePolicy):
    """Expand the best `top_k` nodes of every level, then keep the best of all candidates: EAGLE-2 and EAGLE-3.

    `depth` is the number of drafted levels, which equals the number of draft passes per round (delta). Other sources
    count differently:

    - the authors' code: one less. Its `depth=7` is the default here, 8; its `total_token` is `budget`.
    - TALON's D: one less too, since its Algorithm 1 expands for d = 0 to D. Its D = 8, delta = D + 1 = 9 (appendix
      E.1.2), is `depth=9`. The preset `paper` is this setting, with K = 10 and N = 60.
    - EAGLE-2's and EAGLE-3's papers: the same number of levels, 6 and 8.

    Algorithm 1 of TALON re-ranks only the `top_k` nodes chosen on each level, not every candidate: `chosen_only=True`.
    """

    source: ClassVar[str] = "EAGLE-2 (Li et al. 2024), section 4; EAGLE-3 code"
    reranks: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"depth": 9, "top_k": 10, "budget": 60}}

    depth: int = Field(default=8, ge=1, le=64, description="drafted levels")
    top_k: int = Field(default=10, ge=1, le=256, description="nodes expanded per level, and candidates of each")
    chosen_only: bool = Field(default=False, description="re-rank only the expanded nodes, as TALON's Algorithm 1 does")
    budget: int = Field(default=60, ge=1, le=4096, description="nodes of the final tree, root included")

    def candidates(self, depth: int) -> int:
        return self.top_k

    def levels(self) -> int:
        return self.depth

    def keep(self, layer: Layer) -> Array:
        return self._chosen(layer) if self.chosen_only and layer.depth > 1 else layer.possible

    def expand(self, layer: Layer) -> Array | None:
        return None if self.chosen_only or layer.depth == 1 else self._chosen(layer)

    def _chosen(self, layer: Layer) -> Array:
        """The nodes that the next level grows from."""
        return best_mask(layer.path_logprobs, layer.possible, self.top_k)
