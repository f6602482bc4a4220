"""Copies from host to device: one copy for all arrays of a pass, for which the host does not wait."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

ALIGNED = 16
"""Arrays begin at multiples of this many bytes, which suits every dtype."""


def send(arrays: Sequence[Array], device: torch.device) -> list[Tensor]:
    """Copy arrays to tensors on a device. On a CPU the tensors share the arrays' memory."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    offsets = byte_places(arrays)
    device_bytes = torch.empty(offsets[-1], dtype=torch.uint8, device=device)
    ring_of(device).send(arrays, device_bytes)
    return as_placed(device_bytes, arrays)


def send_to(arrays: Sequence[Array], destination: Tensor) -> None:
    """Copy arrays to a tensor of bytes, each to its offset of `byte_places`.

    Args:
        arrays: arrays, contiguous or not.
        destination: uint8, with at least as many bytes as the arrays need.
    """
    if destination.device.type == "cuda":
        ring_of(destination.device).send(arrays, destination)
        return
    for array, view in zip(arrays, as_placed(destination, arrays), strict=True):
        view.copy_(torch.from_numpy(array))


def packed_bits(mask: Array) -> Array:
    """Bool `[rows, columns]` as uint8 `[rows, columns / 8]`, rounded up: an eighth of the bytes to copy."""
    return np.packbits(mask, axis=1, bitorder="little")


def unpacked_bits(bits: Tensor, columns: int) -> Tensor:
    """The bool `[rows, columns]` that `packed_bits` made into bits."""
    flags = bits[..., None] >> torch.arange(8, dtype=torch.uint8, device=bits.device) & 1
    return flags.flatten(1)[:, :columns].bool()


def byte_places(arrays: Sequence[Array] | Sequence[Tensor]) -> list[int]:
    """The offset of each array in bytes when all are stored one after the other, and the end of the last."""
    return [*accumulate((-(-array.nbytes // ALIGNED) * ALIGNED for array in arrays), initial=0)]


def as_placed(memory: Tensor, arrays: Sequence[Array] | Sequence[Tensor]) -> list[Tensor]:
    """Views of memory at the offsets of `byte_places`, with the arrays' dtypes and shapes."""
    views = list[Tensor]()
    for array, offset in zip(arrays, byte_places(arrays), strict=False):
        dtype = array.dtype if isinstance(array, Tensor) else torch.from_numpy(array[:0]).dtype
        views.append(memory[offset : offset + array.nbytes].view(dtype).view(array.shape))
    return views


class Copied(Protocol):
    """A copy to a device for which the host can wait."""

    def synchronize(self) -> None:
        """Wait until it has ended."""
        ...


class StagingRing:
    """Buffers of pinned memory from which arrays are copied to a device, used one after the other.

    A copy may run long after the host has gone on. So a buffer is written again only when the copy from it has ended.
    With two buffers, the host waits only if it is two passes ahead of the device.

    Args:
        device: where copies go.
        buffers: number of buffers.
    """

    def __init__(self, device: torch.device, buffers: int = 2) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._staged: list[Tensor] = [self.make_buffer(0)] * buffers
        self._copied: list[Copied | None] = [None] * buffers
        self._turn = 0

    def make_buffer(self, size: int) -> Tensor:
        """A buffer of pinned memory, which the device can read while the host goes on."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=size > 0)

    def copy(self, destination: Tensor, staged: Tensor) -> Copied:
        """Begin to copy staged bytes to the device."""
        destination.copy_(staged, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def send(self, arrays: Sequence[Array], destination: Tensor) -> None:
        """Copy arrays to a tensor of bytes on the device, each to its offset of `byte_places`."""
        offsets = byte_places(arrays)
        with self._lock:
            turn = self._turn
            self._turn = (self._turn + 1) % len(self._staged)
            if event := self._copied[turn]:
                event.synchronize()
            if len(self._staged[turn]) < offsets[-1]:
                self._staged[turn] = self.make_buffer(2 * offsets[-1])
            staging_buffer = self._staged[turn][: offsets[-1]]
            staging_bytes = staging_buffer.numpy()
            for array, (offset, _) in zip(arrays, pairwise(offsets), strict=True):
                staging_bytes[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._copied[turn] = self.copy(destination[: offsets[-1]], staging_buffer)


@lru_cache
def ring_of(device: torch.device) -> StagingRing:
    """The only ring of a device."""
    return StagingRing(device)
