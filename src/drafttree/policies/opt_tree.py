from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Array, np
from drafttree.core.tree import DraftTree, Layer
from drafttree.policies.base import TreePolicy, best_mask


class OptTree(TreePolicy):
    """The tree of greatest expected length for a node budget, deepened while that expectation grows: OPT-Tree.

    Every level keeps its best `budget - 1` candidates. The final tree has the best `budget - 1` nodes of all levels.
    Drafting stops when the sum of their path probabilities grows by no more than `threshold` in a level.
    """

    source: ClassVar[str] = "OPT-Tree (arXiv 2406.17276), Algorithm 1"
    reranks: ClassVar[bool] = True

    threshold: float = Field(
        default=0.5, ge=0, le=10, description="growth in expected tokens that makes another level worthwhile (delta)"
    )
    depth: int = Field(default=10, ge=1, le=64, description="maximum number of drafted levels")
    budget: int = Field(default=51, ge=1, le=4096, description="nodes of the final tree, root included")

    def levels(self) -> int:
        return self.depth

    def keep(self, layer: Layer) -> Array:
        return best_mask(layer.path_logprobs, layer.possible, self.budget - 1)

    def stop(self, tree: DraftTree, frontier: Array) -> bool:
        paths = tree.path_logprobs
        level_start = tree.depths.index(tree.levels)
        tokens_after = self._expected(paths, frontier.dtype)
        tokens_before = self._expected(paths[:level_start], frontier.dtype)
        return bool(tokens_after - tokens_before <= self.threshold)

    def _expected(self, paths: Sequence[float], dtype: "np.dtype") -> float:
        """Expected tokens of a round: path probabilities of the best `budget` nodes, the root's included."""
        best_logprobs = np.array(sorted(paths, reverse=True)[: self.budget], dtype=dtype)
        return np.exp(best_logprobs).cumsum()[-1]
