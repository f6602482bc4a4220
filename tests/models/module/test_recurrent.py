"""Recurrent layers run level k of all requests' trees as one batch, every node from its parent's state."""

from random import Random

import pytest
import torch
from torch import Tensor

from drafttree.models import Segment, TargetModel, TreeCache, append
from drafttree.models.cache.kv_cache import CacheLayout
from drafttree.models.cache.recurrent_states import RecurrentStates, StatePool
from drafttree.models.module.recurrent import TreeSteps
from helpers import tiny

KEY = ("conv", 0)


def states(rows: list[float]) -> dict[tuple[str, int], Tensor]:
    return {KEY: torch.tensor(rows)} if rows else {}


def random_text(random: Random, name: float) -> tuple[Segment, list[float], list[int]]:
    """A tree scored in up to two passes; the states of its rows, all different; its parents."""
    tree = tiny.random_tree([random.randrange(1, 5) for _ in range(random.randrange(4))], random.randrange(1000))
    parents, earlier = tree.parents[0].tolist(), random.randrange(tree.size)
    cache = TreeCache(CacheLayout({}), 0)
    cache.recurrent = RecurrentStates(["layer"])
    cache.length = random.randrange(2) * 5
    rows = [name + row for row in range(tree.size)]
    cache.recurrent.layers["layer"].committed = states([name - 1] if cache.length else [])
    cache.recurrent.layers["layer"].drafted = states(rows[:earlier])
    whole = Segment(cache, tree.tokens, tree.depths + cache.length, tree.ancestors)
    if earlier:
        cache.grow(whole.positions[:, :earlier])
    return whole.part(earlier, tree.size), rows, parents


@pytest.mark.parametrize("seed", range(20))
def test_every_level_goes_on_from_its_parents(seed):
    random = Random(seed)
    texts = [random_text(random, 100.0 * (index + 1)) for index in range(random.randrange(1, 5))]
    segments = [segment for segment, _, _ in texts]
    expected: dict[int, list[tuple[float, float | None]]] = {}  # by level, the states of nodes and of their parents
    for segment, rows, parents in texts:
        earlier, first = len(rows) - segment.nodes, int(segment.positions.min())
        is_begun = bool(segment.cache.length or earlier)
        for row in range(earlier, len(rows)):
            committed = rows[0] - 1 if segment.cache.length else None
            above = committed if parents[row] < 0 else rows[parents[row]]
            level = int(segment.positions[0, row - earlier]) - first + is_begun
            expected.setdefault(level, []).append((rows[row], above))

    steps = TreeSteps(segments)
    names = [row for segment, rows, _ in texts for row in rows[len(rows) - segment.nodes :]]
    layers = [segment.cache.recurrent.layers["layer"] for segment in segments]
    pool, found, order = StatePool(layers, len(names)), [], []
    for nodes, parents in steps.levels:
        above = [None] * len(nodes) if parents is None else pool.take(parents)[KEY].tolist()
        own = [names[node] for node in nodes]
        found.append([*zip(own, above, strict=True)])
        pool.append(states(own))
        order += own
    assert found == [expected[level] for level in sorted(expected)]
    assert [order[place] for place in steps.order] == names
    for own, (_, rows, _) in zip(steps.rows, texts, strict=True):
        assert pool.take(own)[KEY].tolist() == rows
