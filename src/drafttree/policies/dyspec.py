from typing import ClassVar

from pydantic import Field

from drafttree.core.lazy import Array, np
from drafttree.core.tree import DraftTree, Layer
from drafttree.policies.base import TreePolicy, best_mask


class DySpec(TreePolicy):
    """Greedy expansion of the most valuable slot: DySpec, with the most probable token in place of a drawn one.

    A slot is a place for one more child. Its value is the path probability of the parent times the probability that
    none of the earlier children is right. The paper's heap takes the `budget - 1` most valuable slots, with one draft
    pass for each. Values never rise down a path or along siblings. So drafting level by level and keeping the most
    valuable slots of all grows the same tree.
    """

    source: ClassVar[str] = "DySpec (arXiv 2410.11744), Algorithm 1"
    reranks: ClassVar[bool] = True

    depth: int = Field(default=16, ge=1, le=64, description="maximum number of drafted levels; no limit in the paper")
    budget: int = Field(default=64, ge=1, le=4096, description="nodes of the final tree, root included")

    def levels(self) -> int:
        return self.depth

    def score(self, layer: Layer) -> Array:
        probs = np.exp(layer.logprobs)
        with np.errstate(divide="ignore"):
            remaining = np.log((1 - (probs.cumsum(-1) - probs)).clip(0))
        return layer.parent_logprobs[:, None] + np.maximum(remaining, layer.logprobs)

    def keep(self, layer: Layer) -> Array:
        return best_mask(layer.scores, layer.possible, self.budget - 1)

    def stop(self, tree: DraftTree, frontier: Array) -> bool:
        """Stop once no deeper slot can be among the best: a node's first slot is worth its path probability."""
        return tree.size >= self.budget and frontier.max() <= sorted(tree.scores)[-self.budget]
