"""Buffers of KV caches that are ranges of one allocation, so one attention call can read those of all requests."""

import weakref
from itertools import pairwise
from typing import Any

from torch import Tensor

from drafttree.models.buffer_pool import BufferPool, PooledBuffers
from drafttree.models.cache_layout import CacheLayout
from drafttree.models.kv_cache import zero_buffers
from drafttree.models.varlen_attention import PAGE

PADDING_ROW = 0
"""Where padding nodes write, and what pads the rows of trees: on the first page, which is no cache's."""


class PagedPool(BufferPool):
    """A pool whose buffers are ranges of pages of one allocation, which doubles when it is full.

    Args:
        layout: of the KV caches.

    Attributes:
        buffers: all rows `[slots, 1, heads, rows, width]`; empty before the first range is taken.
        passes: what was recorded over all rows, which lasts until they are moved.
    """

    def __init__(self, layout: CacheLayout) -> None:
        super().__init__(layout)
        self.buffers: list[Tensor] = []
        self.passes: dict[Any, Any] = {}
        self._ranges: weakref.WeakSet[PooledBuffers] = weakref.WeakSet()

    @property
    def pages(self) -> int:
        """Number of pages."""
        return self.buffers[0].shape[-2] // PAGE if self.buffers else 0

    def _make(self, capacity: int, like: Tensor) -> PooledBuffers:
        start = self._find(capacity)
        if start is None:
            start = self._grow(capacity, like)
        made = PooledBuffers(self._views(start, capacity), start)
        made.clear()
        self._ranges.add(made)
        return made

    def _find(self, capacity: int) -> int | None:
        """The first row of a gap between ranges that is large enough."""
        taken = sorted((each.start, each.start + each.buffers[0].shape[-2]) for each in self._ranges)
        bounds = [(0, PAGE), *taken, (self.pages * PAGE, 0)]
        return next((end for (_, end), (start, _) in pairwise(bounds) if start - end >= capacity), None)

    def _grow(self, capacity: int, like: Tensor) -> int:
        """Move all ranges to a larger allocation; the first row behind the old ones."""
        old, end = self.buffers, max(self.pages, 1) * PAGE
        self.passes.clear()
        self.buffers = zero_buffers(self._layout, 1, max(2 * end, end + capacity), like)
        for buffer, before in zip(self.buffers, old, strict=False):
            buffer[..., : before.shape[-2], :] = before
        for each in self._ranges:
            each.passes.clear()
            each.buffers[:] = self._views(each.start, each.buffers[0].shape[-2])
        return end

    def _views(self, start: int, capacity: int) -> list[Tensor]:
        return [buffer[..., start : start + capacity, :] for buffer in self.buffers]
