"""Buffers of KV caches that outlive their text, with the passes that were recorded on them."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafttree.models.kv_cache import TreeCache

RecordedPass = Callable[[], tuple[Tensor, ...]]
"""Runs a pass on fixed memory; its outputs are `[1, bucket, ...]`."""

MIN_CAPACITY = 512
"""Rows of the smallest buffer; larger ones have a power of two."""
POOL_SIZE = 2
"""Buffers of finished texts that are kept."""


@dataclass(eq=False)
class PooledBuffer:
    """The buffer of a KV cache, and the passes recorded on it by nodes and variant."""

    buffer: Tensor
    passes: dict[tuple[int, tuple[int, ...]], RecordedPass] = field(default_factory=dict)


class BufferPool:
    """The buffers of finished texts, the latest last."""

    def __init__(self) -> None:
        self._free: list[PooledBuffer] = []

    @torch.inference_mode()
    def take(self, capacity: int) -> PooledBuffer | None:
        """A buffer of this capacity, None where none is free.

        Its rows are zeroed: attention multiplies the values of masked rows too, by zero, and NaN would stay NaN.
        """
        found = next((pooled for pooled in reversed(self._free) if pooled.buffer.shape[-2] == capacity), None)
        if found:
            self._free.remove(found)
            found.buffer.zero_()
        return found

    def give(self, pooled: PooledBuffer) -> None:
        """Take a buffer back. Nothing is launched: a cache may be collected while a pass is being recorded."""
        self._free.append(pooled)
        del self._free[:-POOL_SIZE]


class PooledCache(TreeCache):
    """A KV cache for one sequence on a buffer of a pool.

    Attributes:
        pool: where its buffer comes from and goes to.
        pooled: set with the first pass, and whenever the cache grows.
    """

    pooled: PooledBuffer

    def __init__(self, layers: int, capacity: int, pool: BufferPool) -> None:
        super().__init__(layers, 1, capacity)
        self.pool = pool

    def _allocate(self, like: Tensor, heads: int, width: int) -> Tensor:
        self._capacity = max(MIN_CAPACITY, 1 << (self._capacity - 1).bit_length())
        self.pooled = self.pool.take(self._capacity) or PooledBuffer(super()._allocate(like, heads, width))
        weakref.finalize(self, self.pool.give, self.pooled).atexit = False
        return self.pooled.buffer
