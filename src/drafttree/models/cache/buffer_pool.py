"""Buffers of KV caches that outlive their text, with the passes that were recorded on them."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from drafttree.models.cache.kv_cache import CacheLayout, TreeCache, zero_buffers

RecordedPass = Callable[[], tuple[Tensor, ...]]
"""Runs a pass on fixed memory; its outputs are `[1, bucket, ...]`."""

Recorder = Callable[[RecordedPass], RecordedPass | None]
"""Records a pass, and returns a function that repeats it; None if the pass cannot be recorded."""

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
        start: index of their first row in the allocation of a `RangePool`; 0 in a `BufferPool`.
        passes: by sizes and variant, the recorded passes with the memory that they read.
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

    def take(self, capacity: int, reference_tensor: Tensor) -> PooledBuffers:
        """Buffers of this capacity, of the dtype and device of a tensor, all zero; new ones if none are free.

        They are zero since attention multiplies the values of masked rows by zero, and NaN would stay NaN.
        """
        pooled = next(
            (candidate for candidate in reversed(self._free) if candidate.buffers[0].shape[-2] == capacity), None
        )
        if pooled is None:
            return self._make(capacity, reference_tensor)
        self._free.remove(pooled)
        pooled.clear()
        return pooled

    def give(self, pooled: PooledBuffers) -> None:
        """Give buffers back. Nothing runs on the device, since a cache may be collected while a pass is recorded."""
        self._free.append(pooled)
        del self._free[:-POOL_SIZE]

    def _make(self, capacity: int, reference_tensor: Tensor) -> PooledBuffers:
        return PooledBuffers(zero_buffers(self._layout, capacity, reference_tensor))


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

    def reserve(self, rows: int, reference_tensor: Tensor) -> None:
        """Make room for this many rows, of the dtype and device of a tensor."""
        if rows > self.rows:
            self._move(rows, reference_tensor)

    def _make(self, capacity: int, reference_tensor: Tensor) -> PooledBuffers:
        start = self._find(capacity)
        if start + capacity > self.rows:
            self._move(max(2 * self.rows, start + capacity), reference_tensor)
        pooled = PooledBuffers(self._views(start, capacity), start)
        pooled.clear()
        self._ranges.add(pooled)
        return pooled

    def _find(self, capacity: int) -> int:
        """The first row of the first gap between ranges that is large enough, or the row after the last range."""
        taken_ranges = sorted((pooled.start, pooled.start + pooled.buffers[0].shape[-2]) for pooled in self._ranges)
        gap_start = PADDING_ROW + 1
        for start, end in taken_ranges:
            if start - gap_start >= capacity:
                break
            gap_start = end
        return gap_start

    def _move(self, rows: int, reference_tensor: Tensor) -> None:
        """Move all ranges to a new allocation of this many rows."""
        old_buffers = self.buffers
        self.passes.clear()
        self.buffers = zero_buffers(self._layout, rows, reference_tensor)
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
        pooled: its buffers; set by the first pass, and again when the cache grows.
    """

    pooled: PooledBuffers

    def __init__(self, layout: CacheLayout, capacity: int, pool: BufferPool) -> None:
        super().__init__(layout, capacity)
        self.pool = pool

    def _allocate(self, reference_tensor: Tensor) -> list[Tensor]:
        self.capacity = max(MIN_CAPACITY, 1 << (self.capacity - 1).bit_length())
        self.pooled = self.pool.take(self.capacity, reference_tensor)
        # a collected cache gives its buffers back, but not at exit, when the pool may be gone
        weakref.finalize(self, self.pool.give, self.pooled).atexit = False
        return self.pooled.buffers


def allocation_of(cache: TreeCache) -> RangePool | TreeCache:
    """What has the buffers in which a cache's rows are: a pool that others share, or the cache itself."""
    if isinstance(cache, PooledCache) and isinstance(cache.pool, RangePool):
        return cache.pool
    return cache
