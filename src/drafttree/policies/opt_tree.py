from typing import ClassVar

from pydantic import Field, PrivateAttr
from torch import Tensor

from drafttree.core.tree import Layer, TreeBuilder
from drafttree.policies.base import TreePolicy, best_mask


class OptTree(TreePolicy):
    """The tree of greatest expected length for a node budget, deepened while that expectation grows: OPT-Tree.

    Every level keeps its best `budget - 1` candidates; drafting stops when the summed path probability of the best
    `budget - 1` nodes so far has grown by no more than `threshold`; the final tree is those nodes.
    """

    source: ClassVar[str] = "OPT-Tree (arXiv 2406.17276), Algorithm 1"
    reranks: ClassVar[bool] = True

    threshold: float = Field(default=0.5, ge=0, le=10, description="growth in expected tokens worth a level (delta)")
    depth: int = Field(default=10, ge=1, le=64, description="drafted levels at most")
    budget: int = Field(default=51, ge=1, le=4096, description="nodes of the final tree, root included")

    _expected: Tensor = PrivateAttr()

    def candidates(self, budget_left: int) -> int:
        return max(self.budget - 1, 1)

    def levels(self) -> int:
        return self.depth

    def keep(self, layer: Layer) -> Tensor:
        return best_mask(layer.path_logprobs, layer.everything(), self.budget - 1)

    def stop(self, grown: TreeBuilder, frontier: Tensor) -> Tensor:
        before = self._expected if grown.levels > 1 else 0.0
        self._expected = grown.tree().best(self.budget).path_logprobs[:, 1:].exp().sum(1)
        return self._expected - before <= self.threshold
