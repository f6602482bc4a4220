"""Buffers of KV caches that outlive their text, with the passes that were recorded on them."""

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from drafttree.models.cache.kv_cache import CacheLayout, TreeCache, zero_buffers

RecordedPass = Callable[[], tuple[Tensor, ...]]
"""Runs a pass on fixed memory; its outputs are `[1, bucket, ...]`."""

Recorder = Callable[[RecordedPass], RecordedPass | None]
"""Records a pass; the result repeats the pass, and is None if it cannot be recorded."""

MIN_CAPACITY = 512
"""Rows of the smallest buffer; larger ones have a power of two."""
POOL_SIZE = 2
"""Buffers of finished texts that are kept."""
PADDING_ROW = 0
"""The row that padding nodes write and read, which belongs to no cache."""


@dataclass(eq=False)
class PooledBuffers:
    """The buffers of a KV cache, and the passes recorded on them.

    Attributes:
        buffers: as of `TreeCache.buffers`.
        start: index of their first row in the allocation of a `RangePool`; 0 for buffers of their own.
        passes: recorded passes by sizes and variant, with the memory that they read.
    """

    buffers: list[Tensor]
    start: int = 0
    passes: dict[Any, Any] = field(default_factory=dict)

    @torch.inference_mode()
    def clear(self) -> None:
        """Set all rows to zero."""
        for buffer in self.buffers:
            buffer.zero_()


class BufferPool:
    """Keeps the buffers of finished texts for later ones.

    Args:
        layout: layout of the KV caches.
    """

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        self._free: list[PooledBuffers] = []

    def take(self, capacity: int, like: Tensor) -> PooledBuffers:
        """Buffers of this capacity, of the dtype and device of a tensor, all zero; new ones if none are free.

        They are zero since attention multiplies the values of masked rows by zero, and NaN would stay NaN.
        """
        pooled = next(
            (candidate for candidate in reversed(self._free) if candidate.buffers[0].shape[-2] == capacity), None
        )
        if pooled is None:
            return self._make(capacity, like)
        self._free.remove(pooled)
        pooled.clear()
        return pooled

    def give(self, pooled: PooledBuffers) -> None:
        """Take buffers back. Nothing runs on the device, since a cache may be collected while a pass is recorded."""
        self._free.append(pooled)
        del self._free[:-POOL_SIZE]

    def _make(self, capacity: int, like: Tensor) -> PooledBuffers:
        return PooledBuffers(zero_buffers(self._layout, capacity, like))


class RangePool(BufferPool):
    """A pool whose buffers are ranges of one allocation, so that one attention call reads those of all requests.

    When the allocation is full, its size is doubled, and all passes recorded on it are lost; `reserve` prevents that.

    Args:
        layout: layout of the KV caches.

    Attributes:
        buffers: the allocation `[slots, 1, heads, rows, width]` of each shape; empty before the first range is taken.
        passes: passes recorded over several ranges; cleared when the allocation moves.
    """

    def __init__(self, layout: CacheLayout) -> None:
        super().__init__(layout)
        self.buffers: list[Tensor] = []
        self.passes: dict[Any, Any] = {}
        self._ranges: weakref.WeakSet[PooledBuffers] = weakref.WeakSet()

    @property
    def rows(self) -> int:
        """Number of rows of the allocation."""
        return self.buffers[0].shape[-2] if self.buffers else 0

    def reserve(self, rows: int, like: Tensor) -> None:
        """Make room for so many rows, of the dtype and device of a tensor."""
        if rows > self.rows:
            self._move(rows, like)

    def _make(self, capacity: int, like: Tensor) -> PooledBuffers:
        start = self._find(capacity)
        if start + capacity > self.rows:
            self._move(max(2 * self.rows, start + capacity), like)
        pooled = PooledBuffers(self._views(start, capacity), start)
        pooled.clear()
        self._ranges.add(pooled)
        return pooled

    def _find(self, capacity: int) -> int:
        """The first row of the first gap between ranges that is large enough; the gap after the last has no end."""
        taken_ranges = sorted((pooled.start, pooled.start + pooled.buffers[0].shape[-2]) for pooled in self._ranges)
        bounds = [(0, PADDING_ROW + 1), *taken_ranges, (math.inf, 0)]
        return next(end for (_, end), (start, _) in pairwise(bounds) if start - end >= capacity)

    def _move(self, rows: int, like: Tensor) -> None:
        """Move all ranges to a new allocation of so many rows."""
        old_buffers = self.buffers
        self.passes.clear()
        self.buffers = zero_buffers(self._layout, rows, like)
        for buffer, old_buffer in zip(self.buffers, old_buffers, strict=False):
            buffer[..., : old_buffer.shape[-2], :] = old_buffer
        for pooled in self._ranges:
            pooled.passes.clear()
            pooled.buffers[:] = self._views(pooled.start, pooled.buffers[0].shape[-2])

    def _views(self, start: int, capacity: int) -> list[Tensor]:
        return [buffer[..., start : start + capacity, :] for buffer in self.buffers]


class PooledCache(TreeCache):
    """A KV cache on buffers of a pool.

    Attributes:
        pool: the pool where its buffers come from and go to.
        pooled: set with the first pass, and whenever the cache grows.
    """

    pooled: PooledBuffers

    def __init__(self, layout: CacheLayout, capacity: int, pool: BufferPool) -> None:
        super().__init__(layout, capacity)
        self.pool = pool

    def _allocate(self, like: Tensor) -> list[Tensor]:
        self.capacity = max(MIN_CAPACITY, 1 << (self.capacity - 1).bit_length())
        self.pooled = self.pool.take(self.capacity, like)
        # a cache that is collected gives its buffers back; at exit there is nobody to give them to
        weakref.finalize(self, self.pool.give, self.pooled).atexit = False
        return self.pooled.buffers
