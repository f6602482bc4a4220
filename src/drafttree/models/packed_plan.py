"""The attention masks of a packed pass through layers of transformers."""

import torch
from torch import Tensor

from drafttree.models.packed_cache import PackedCache
from drafttree.models.tree_attention import AttentionPart, TreePlan


class PackedPlan:
    """The plans of all segments of a pass, handed to our attention function as `tree_plan`.

    Args:
        cache: what the layers are given as KV cache; its segments' caches are as before the pass.
        dtype: of the additive masks.
    """

    def __init__(self, cache: PackedCache, dtype: torch.dtype) -> None:
        self._cache = cache
        self._plans = [TreePlan(each.cache, each.positions, each.visible, dtype) for each in cache.segments]

    def parts(self, query: Tensor, key: Tensor, value: Tensor) -> list[AttentionPart]:
        """What a layer attends from and to, by segment."""
        split = zip(query.split(self._cache.sizes, 2), self._cache.rows_of(key, value), self._plans, strict=True)
        return [AttentionPart(own, *rows, plan) for own, rows, plan in split]
