"""A tree policy of your own: one class with one method, used like every other, and proven lossless."""

from typing import ClassVar

from numpy import ndarray
from pydantic import Field

import drafttree
from drafttree import Layer
from drafttree.exactness import TabularModel, law
from drafttree.policies import TreePolicy
from drafttree.verifiers import Traversal


class Pyramid(TreePolicy):
    """Wide at the root, one child less on every level."""

    source: ClassVar[str] = "an example"
    width: int = Field(default=4, ge=1, le=64, description="children of the root")

    def levels(self) -> int:
        return self.width

    def keep(self, layer: Layer) -> ndarray:
        return layer.rank <= self.width - layer.depth


decoder = drafttree.load(policy=Pyramid(width=4, budget=24))
result = decoder.generate("Once there was a king", max_new_tokens=40)
print(result.text)
print(f"{result.metrics.mean_accepted_tokens:.2f} tokens per target pass")

target = TabularModel(vocab=3, depth=2, seed=0)
draft = TabularModel(vocab=3, depth=2, seed=1, near=target)
found = law(target, draft, Pyramid(width=2, budget=5), Traversal, levels=2)
print("sampled texts follow the target's law:", found.total_variation < 1e-12)
