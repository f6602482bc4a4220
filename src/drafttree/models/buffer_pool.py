"""Buffers of KV caches that outlive their text, with the passes that were recorded on them."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafttree.models.cache_layout import CacheLayout
from drafttree.models.kv_cache import TreeCache, zero_buffers

RecordedPass = Callable[[], tuple[Tensor, ...]]
"""Runs a pass on fixed memory; its outputs are `[1, bucket, ...]`."""

Recorder = Callable[[RecordedPass], RecordedPass | None]
"""Makes something that repeats a pass out of the pass, or None where it cannot."""

MIN_CAPACITY = 512
"""Rows of the smallest buffer; larger ones have a power of two."""
POOL_SIZE = 2
"""Buffers of finished texts that are kept."""


@dataclass(eq=False)
class PooledBuffers:
    """The buffers of a KV cache, and the passes recorded on them by nodes and variant.

    Attributes:
        start: their first row in the allocation they are part of, if they are.
    """

    buffers: list[Tensor]
    start: int = 0
    passes: dict[tuple[int, tuple[int, ...]], RecordedPass] = field(default_factory=dict)

    @torch.inference_mode()
    def clear(self) -> None:
        """Set all rows to zero."""
        for buffer in self.buffers:
            buffer.zero_()


class BufferPool:
    """The buffers of finished texts, the latest last.

    Args:
        layout: of the KV caches.
    """

    def __init__(self, layout: CacheLayout) -> None:
        self._layout = layout
        self._free: list[PooledBuffers] = []

    def take(self, capacity: int, like: Tensor) -> PooledBuffers:
        """Buffers of this capacity, of the dtype and device of a tensor; new ones where none are free.

        Its rows are zeroed: attention multiplies the values of masked rows too, by zero, and NaN would stay NaN.
        """
        found = next((pooled for pooled in reversed(self._free) if pooled.buffers[0].shape[-2] == capacity), None)
        if found is None:
            return self._make(capacity, like)
        self._free.remove(found)
        found.clear()
        return found

    def give(self, pooled: PooledBuffers) -> None:
        """Take buffers back. Nothing is launched: a cache may be collected while a pass is being recorded."""
        self._free.append(pooled)
        del self._free[:-POOL_SIZE]

    def _make(self, capacity: int, like: Tensor) -> PooledBuffers:
        return PooledBuffers(zero_buffers(self._layout, 1, capacity, like))


class PooledCache(TreeCache):
    """A KV cache for one sequence on buffers of a pool.

    Attributes:
        pool: where its buffers come from and go to.
        pooled: set with the first pass, and whenever the cache grows.
    """

    pooled: PooledBuffers

    def __init__(self, layout: CacheLayout, capacity: int, pool: BufferPool) -> None:
        super().__init__(layout, 1, capacity)
        self.pool = pool

    def _allocate(self, like: Tensor) -> list[Tensor]:
        self.capacity = max(MIN_CAPACITY, 1 << (self.capacity - 1).bit_length())
        self.pooled = self.pool.take(self.capacity, like)
        weakref.finalize(self, self.pool.give, self.pooled).atexit = False
        return self.pooled.buffers
