from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Tensor
from drafttree.core.tree import Layer, PartialTree
from drafttree.policies.base import TreePolicy, best_mask


class DySpec(TreePolicy):
    """Greedy expansion of the most valuable slot: DySpec, with the most probable token in place of a drawn one.

    A slot is a place for one more child; its value is the path probability of the parent times the probability that
    none of the children before it is right. The heap of the paper takes the `budget - 1` most valuable slots one draft
    pass at a time. Values only fall on the way down and along siblings, so the same tree comes from drafting level by
    level and keeping the most valuable slots of all.
    """

    source: ClassVar[str] = "DySpec (arXiv 2410.11744), Algorithm 1"
    reranks: ClassVar[bool] = True

    depth: int = Field(default=16, ge=1, le=64, description="drafted levels at most; none in the paper")
    budget: int = Field(default=64, ge=1, le=4096, description="nodes of the final tree, root included")

    def levels(self) -> int:
        return self.depth

    def most_kept(self, depth: int) -> int:
        return self.budget - 1

    def score(self, layer: Layer) -> Tensor:
        probs = layer.logprobs.exp()
        remaining = (1 - (probs.cumsum(-1) - probs)).clamp_min(0).log()
        return layer.parent_logprobs[..., None] + remaining.maximum(layer.logprobs)

    def keep(self, layer: Layer) -> Tensor:
        return best_mask(layer.scores, layer.possible, self.budget - 1)

    def stop(self, tree: PartialTree, frontier: Tensor) -> Tensor | None:
        """Stop once no deeper slot can be among the best: a node's first slot is worth its path probability."""
        if tree.size < self.budget:
            return None
        worst = tree.scores.topk(self.budget).values[:, -1:]
        return (frontier <= worst).all(1)
