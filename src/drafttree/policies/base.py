"""What a tree policy is: two masks over a `Layer`.

A policy says which candidates join the tree and which of those are expanded next. Budget cuts, compaction to the next
frontier and padding are the business of `drafttree.engine.tree_growth`. So a paper's method is a dozen lines that can
be read beside the paper. Policies are pydantic models: their fields are the parameters, checked when one is made.

A policy object describes a tree and may also adapt while one text is generated; `fresh` gives each text its own copy.
"""

from typing import ClassVar, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from drafttree.core.errors import ConfigError, unknown
from drafttree.core.tree import DraftTree, Layer, TreeBuilder


class TreePolicy(BaseModel):
    """Base of all tree policies; subclasses override `keep` and, where they need to, the other hooks.

    Attributes:
        source: the paper and the equation or algorithm number.
        branches: whether a node can have more than one child.
        reranks: grow past the budget and cut the finished tree down to it in `finish`.
        budget: nodes of the tree at most, the root included.

    Raises:
        ConfigError: a parameter does not exist or its value is out of range.
    """

    model_config = ConfigDict(extra="forbid", validate_default=True)
    source: ClassVar[str]
    branches: ClassVar[bool] = True
    reranks: ClassVar[bool] = False

    budget: int = Field(default=60, ge=1, le=4096, description="nodes of the tree at most, root included")

    def __init__(self, **parameters: object) -> None:
        try:
            super().__init__(**parameters)
        except ValidationError as error:
            raise _explain(type(self), error) from None

    def candidates(self, budget_left: int) -> int:
        """How many of a frontier node's best candidates `keep` needs to see."""
        return budget_left

    def levels(self) -> int | None:
        """The deepest level the policy drafts, None for no cap of its own."""
        return None

    def keep(self, layer: Layer) -> Tensor:
        """Bool `[batch, frontier, candidates]`: which candidates join the tree."""
        raise NotImplementedError

    def expand(self, layer: Layer) -> Tensor | None:
        """Bool `[batch, frontier, candidates]`: which kept candidates are expanded; None for all of them."""

    def score(self, layer: Layer) -> Tensor:
        """`[batch, frontier, candidates]` what budget cuts and re-ranking order by; never above the parent's."""
        return layer.path_logprobs

    def label(self, layer: Layer) -> Tensor | None:
        """Int64 `[batch, frontier, candidates]` to hand down to the kept candidates, or None."""

    def stop(self, grown: TreeBuilder, frontier: Tensor) -> Tensor | None:
        """Bool `[batch]`: which sequences stop here; None for none of them.

        Args:
            grown: the tree so far.
            frontier: `[batch, width]` path log-probabilities of the nodes to expand next.
        """

    def finish(self, tree: DraftTree) -> DraftTree:
        """The tree to verify, given the tree as grown."""
        return tree.best(self.budget) if self.reranks else tree

    def observe(self, accepted: int, levels: int) -> None:
        """Take note of a round: accepted drafted tokens out of so many drafted levels."""

    def fresh(self) -> Self:
        """A copy with the same parameters that has observed nothing."""
        return type(self)(**self.model_dump())


def best_mask(scores: Tensor, among: Tensor, count: int | Tensor) -> Tensor:
    """The `count` highest scores among `among` as a mask of the same shape, ties to the lower index.

    Args:
        scores: `[batch, ...]`, ranked over everything but the batch axis.
        among: bool of the same shape.
        count: how many to take at most, one number or `[batch, 1]`; all of `among` where it holds fewer.
    """
    flat = scores.masked_fill(~among, -torch.inf).flatten(1)
    order = flat.argsort(dim=1, descending=True, stable=True)
    within = torch.arange(flat.shape[1], device=flat.device).expand_as(flat) < count
    chosen = torch.zeros_like(within).scatter_(1, order, within)
    return chosen.view_as(scores) & among


def _explain(policy: type[TreePolicy], error: ValidationError) -> ConfigError:
    """One line for the first thing pydantic found wrong."""
    first = error.errors()[0]
    reason = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not first["loc"]:
        return ConfigError(f"{policy.__name__}: {reason}")
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        return unknown(f"parameter of {policy.__name__}", name, policy.model_fields)
    bounds = [
        str(getattr(limit, side))
        for limit in policy.model_fields[name].metadata
        for side in ("ge", "le")
        if hasattr(limit, side)
    ]
    if "less" in reason or "greater" in reason:
        reason = f"between {' and '.join(bounds)}"
    return ConfigError(f"{policy.__name__}: {name} is {first['input']!r}; it should be {reason}")
