"""Arrays on their way to a device: where they lie there, and that none is overwritten before it has been copied."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drafttree.models.host_copies import StagingRing, as_placed, byte_places, packed_bits, send, send_to, unpacked_bits

CPU = torch.device("cpu")
DTYPES = st.sampled_from([np.int64, np.int32, bool, np.uint8])


class DelayedCopies(StagingRing):
    """A ring whose copies run when they are waited for, or when the device comes to them: as late as they may."""

    def __init__(self, buffers: int = 2) -> None:
        super().__init__(CPU, buffers)
        self.queue: list[Delayed] = []

    def make_buffer(self, size):
        return torch.empty(size, dtype=torch.uint8)

    def copy(self, there, staged):
        self.queue.append(Delayed(self, there, staged))
        return self.queue[-1]


class Delayed:
    def __init__(self, ring: DelayedCopies, there: torch.Tensor, staged: torch.Tensor) -> None:
        self.ring, self.there, self.staged = ring, there, staged

    def synchronize(self) -> None:
        while self in self.ring.queue:
            first = self.ring.queue.pop(0)
            first.there.copy_(first.staged)


def arrays_of(passes: int) -> list[list[np.ndarray]]:
    sizes = [7, 300, 2, 1, 5000, 3, 4]
    return [[np.arange(size) + 1000 * turn, np.arange(size) % 3 == 0] for turn, size in enumerate(sizes[:passes])]


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_no_pass_reads_what_a_later_one_has_written(buffers):
    ring, passes = DelayedCopies(buffers), arrays_of(7)
    there = [torch.empty(byte_places(arrays)[-1], dtype=torch.uint8) for arrays in passes]
    for arrays, place in zip(passes, there, strict=True):
        ring.send(arrays, place)
        assert len(ring.queue) <= buffers
    ring.queue[-1].synchronize()
    for arrays, place in zip(passes, there, strict=True):
        for array, found in zip(arrays, as_placed(place, arrays), strict=True):
            assert np.array_equal(found.numpy(), array)


def test_a_ring_that_does_not_wait_is_found(monkeypatch):
    ring, passes = DelayedCopies(), arrays_of(7)[2:]
    there = [torch.empty(byte_places(arrays)[-1], dtype=torch.uint8) for arrays in passes]
    with monkeypatch.context() as patch:
        patch.setattr(Delayed, "synchronize", lambda self: None)
        for arrays, place in zip(passes[:1] + passes[3:], there[:1] + there[3:], strict=True):
            ring.send(arrays, place)
    ring.queue[-1].synchronize()
    assert not np.array_equal(as_placed(there[0], passes[0])[0].numpy(), passes[0][0])


@given(shapes=st.lists(st.tuples(DTYPES, st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=6))
def test_arrays_of_all_kinds_arrive(shapes):
    random = np.random.default_rng(0)
    arrays = [random.integers(0, 2, (rows, columns)).astype(dtype) for dtype, rows, columns in shapes]
    there = torch.empty(byte_places(arrays)[-1], dtype=torch.uint8)
    send_to(arrays, there)
    for array, placed, sent in zip(arrays, as_placed(there, arrays), send(arrays, CPU), strict=True):
        assert placed.numpy().dtype == array.dtype
        assert np.array_equal(placed.numpy(), array)
        assert np.array_equal(sent.numpy(), array)


@given(rows=st.integers(1, 20), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_bits_are_the_mask(rows, columns, seed):
    mask = np.random.default_rng(seed).random((rows, columns)) < 0.5
    assert np.array_equal(unpacked_bits(torch.from_numpy(packed_bits(mask)), columns).numpy(), mask)
