"""The cache keeps rows where they belong: through growth, through `commit`, and never by copying what is in place."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from drafttree.models import CacheLayout, TreeCache
from drafttree.models.cache.kv_cache import LayerShape

LAYERS, HEADS, WIDTH = 2, 3, 4
LAYOUT = CacheLayout.uniform(LAYERS, HEADS, WIDTH)


def store(cache: TreeCache, rows: int, seed: int) -> torch.Tensor:
    """One pass of random rows through every layer: `[layers, 2, 1, heads, rows, width]`."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(LAYERS, 2, 1, HEADS, rows, WIDTH, generator=generator)
    for layer, (keys, values) in enumerate(states):
        cache.update(keys, values, layer)
    start = cache.get_seq_length()
    cache.grow(np.arange(start, start + rows))
    return states


def contents(cache: TreeCache) -> torch.Tensor:
    """All rows in use, as `update` hands them to attention."""
    nothing = torch.zeros(1, HEADS, 0, WIDTH)
    return torch.stack([torch.stack(cache.update(nothing, nothing, layer)) for layer in range(LAYERS)])


def address(cache: TreeCache) -> int:
    nothing = torch.zeros(1, HEADS, 0, WIDTH)
    return cache.update(nothing, nothing, 0)[0].untyped_storage().data_ptr()


def test_growing_past_the_capacity_loses_no_rows():
    cache = TreeCache(LAYOUT, capacity=4)
    passes = []
    for seed, rows in enumerate([3, 4, 9, 1]):
        passes.append(store(cache, rows, seed))
        cache.commit(range(rows))
    assert cache.length == 17
    assert torch.equal(contents(cache), torch.cat(passes, -2))


def test_growing_in_the_middle_of_a_tree_loses_no_rows():
    cache = TreeCache(LAYOUT, capacity=4)
    passes = [store(cache, 3, 0), store(cache, 2, 1), store(cache, 5, 2)]
    assert (cache.length, cache.drafted) == (0, 10)
    assert torch.equal(contents(cache), torch.cat(passes, -2))


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_rows_that_are_not_written_take_no_memory():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    cache, before = TreeCache(CacheLayout.uniform(8, 2, 64), capacity=16_384), resident()
    cache.reserve(torch.zeros(1), 1)
    for buffer in cache.buffers:
        assert not buffer[..., -1, :].any()
        buffer[..., :64, :] = 1
    assert cache.nbytes == 8 * 2 * 2 * 64 * 16_384 * 4
    assert resident() - before < cache.nbytes / 20


def test_the_capacity_asked_for_is_not_reallocated():
    cache = TreeCache(LAYOUT, capacity=8)
    store(cache, 1, 0)
    before, nbytes = address(cache), cache.nbytes
    store(cache, 7, 1)
    assert (address(cache), cache.nbytes) == (before, nbytes)
    assert nbytes == LAYERS * 2 * HEADS * 8 * WIDTH * 4


def test_commit_moves_the_accepted_rows_behind_the_prefix():
    cache = TreeCache(LAYOUT, capacity=16)
    prefix = store(cache, 3, 0)
    cache.commit(range(3))
    tree = store(cache, 6, 1)
    cache.commit([0, 2, 5])
    assert torch.equal(contents(cache), torch.cat((prefix, tree[..., [0, 2, 5], :]), -2))


@pytest.mark.parametrize("rows", [[3, 0, 1], [2]])
def test_commit_orders_rows_as_asked(rows):
    cache = TreeCache(LAYOUT, capacity=8)
    tree = store(cache, 4, 0)
    cache.commit(rows)
    assert torch.equal(contents(cache), tree[..., rows, :])


@pytest.mark.parametrize("rows", [range(3), [0, 1, 2], [0], []])
def test_committing_rows_already_in_place_copies_nothing(rows, monkeypatch):
    cache = TreeCache(LAYOUT, capacity=8)
    tree, before = store(cache, 5, 0), address(cache)
    monkeypatch.setattr(torch.Tensor, "index_select", lambda *_: pytest.fail("a copy was made"))
    cache.commit(rows)
    assert address(cache) == before
    assert torch.equal(contents(cache), tree[..., : len(rows), :])


def test_commit_drops_the_rest_of_the_tree():
    cache = TreeCache(LAYOUT, capacity=8)
    store(cache, 5, 0)
    cache.commit([0, 3])
    assert (cache.length, cache.drafted, len(cache.positions)) == (2, 0, 0)
    assert cache.get_seq_length() == 2


def test_rows_made_in_inference_mode_can_be_committed_outside_it():
    cache = TreeCache(LAYOUT, capacity=8)
    with torch.inference_mode():
        tree = store(cache, 4, 0)
    cache.commit([0, 2])
    with torch.inference_mode():
        assert torch.equal(contents(cache), tree[..., [0, 2], :])


def test_positions_of_several_passes_are_joined():
    cache = TreeCache(LAYOUT, capacity=8)
    cache.grow(np.array([4, 5, 5]))
    cache.grow(np.array([6]))
    assert cache.positions.tolist() == [4, 5, 5, 6]
    assert cache.drafted == 4


def test_an_empty_cache_takes_no_memory():
    assert TreeCache(LAYOUT, capacity=1000).nbytes == 0


def test_layers_of_different_shapes_keep_their_rows():
    shapes = {0: LayerShape(3, 6, 4), 2: LayerShape(1, 4, 4), 3: LayerShape(3, 6, 4)}
    cache = TreeCache(CacheLayout(shapes), capacity=2)
    generator, kept = torch.Generator().manual_seed(0), {}
    for rows, accepted in ((2, [0, 1]), (5, [0, 2, 4])):
        for layer, (heads, *widths) in shapes.items():
            states = [torch.randn(1, heads, rows, width, generator=generator) for width in widths]
            cache.update(*states, layer)
            chosen = [state[:, :, accepted] for state in states]
            kept[layer] = (
                [torch.cat(both, 2) for both in zip(kept[layer], chosen, strict=True)] if layer in kept else chosen
            )
        cache.grow(np.arange(rows))
        cache.commit(accepted)
    for layer, rows in zip(shapes, cache.committed(), strict=True):
        assert all(torch.equal(*pair) for pair in zip(rows, kept[layer], strict=True))
    assert len(CacheLayout(shapes).buffers) == 3
