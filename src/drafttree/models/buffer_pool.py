"""Buffers of KV caches that outlive their text, with the passes that were recorded on them."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafttree.models.cache_layout import CacheLayout
from drafttree.models.kv_cache import TreeCache

RecordedPass = Callable[[], tuple[Tensor, ...]]
"""Runs a pass on fixed memory; its outputs are `[1, bucket, ...]`."""

MIN_CAPACITY = 512
"""Rows of the smallest buffer; larger ones have a power of two."""
POOL_SIZE = 2
"""Buffers of finished texts that are kept."""


@dataclass(eq=False)
class PooledBuffers:
    """The buffers of a KV cache, and the passes recorded on them by nodes and variant."""

    buffers: list[Tensor]
    passes: dict[tuple[int, tuple[int, ...]], RecordedPass] = field(default_factory=dict)


class BufferPool:
    """The buffers of finished texts, the latest last."""

    def __init__(self) -> None:
        self._free: list[PooledBuffers] = []

    @torch.inference_mode()
    def take(self, capacity: int) -> PooledBuffers | None:
        """Buffers of this capacity, None where none are free.

        Its rows are zeroed: attention multiplies the values of masked rows too, by zero, and NaN would stay NaN.
        """
        found = next((pooled for pooled in reversed(self._free) if pooled.buffers[0].shape[-2] == capacity), None)
        if found:
            self._free.remove(found)
            for buffer in found.buffers:
                buffer.zero_()
        return found

    def give(self, pooled: PooledBuffers) -> None:
        """Take buffers back. Nothing is launched: a cache may be collected while a pass is being recorded."""
        self._free.append(pooled)
        del self._free[:-POOL_SIZE]


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
        self.pooled = self.pool.take(self.capacity) or PooledBuffers(super()._allocate(like))
        weakref.finalize(self, self.pool.give, self.pooled).atexit = False
        return self.pooled.buffers
