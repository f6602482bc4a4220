"""Recurrent layers run level k of all requests' trees as one batch, every node from its parent's state."""

from collections.abc import Callable
from random import Random

import pytest
import torch
from torch import Tensor
from transformers import Cache

from drafttree.models import CacheLayout, Output, Segment, TargetModel, TreeCache
from drafttree.models.base import append
from drafttree.models.cache.recurrent_states import RecurrentStates, StatePool
from drafttree.models.module.module_checks import recurrent_layers
from drafttree.models.module.recurrent import TreeSteps
from testing import families, tiny

KEY = ("conv", 0)
TREES = [tiny.random_tree((3, 4, 2), 1), tiny.random_tree((2, 5, 3), 2)]
every_hybrid = pytest.mark.parametrize("name", families.hybrids())
needs_hybrids = pytest.mark.skipif(not hasattr(Cache, "get_conv_state"), reason="recurrent layers share no cache here")


def states(rows: list[float]) -> dict[tuple[str, int], Tensor]:
    return {KEY: torch.tensor(rows)} if rows else {}


def random_text(random: Random, name: float) -> tuple[Segment, list[float], list[int]]:
    """A tree scored in up to two passes; the states of its rows, all different; its parents."""
    tree = tiny.random_tree([random.randrange(1, 5) for _ in range(random.randrange(4))], random.randrange(1000))
    parents, earlier = tree.parents.tolist(), random.randrange(tree.size)
    cache = TreeCache(CacheLayout({}), 0)
    cache.recurrent = RecurrentStates(["layer"])
    cache.length = random.randrange(2) * 5
    rows = [name + row for row in range(tree.size)]
    cache.recurrent.layers["layer"].committed = states([name - 1] if cache.length else [])
    cache.recurrent.layers["layer"].drafted = states(rows[:earlier])
    whole = Segment(cache, tree.tokens, tree.depths + cache.length, tree.ancestors)
    if earlier:
        cache.grow(whole.positions[:earlier])
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
            level = int(segment.positions[row - earlier]) - first + is_begun
            expected.setdefault(level, []).append((rows[row], above))

    steps = TreeSteps(segments, torch.device("cpu"))
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


def segments_of(model: TargetModel) -> list[Segment]:
    """Two trees behind prompts of different lengths."""
    caches = [model.new_cache(32) for _ in TREES]
    for cache, length in zip(caches, (5, 9), strict=True):
        append(model, cache, tiny.random_tokens(length, length))
    return [
        Segment(cache, tree.tokens, tree.depths + cache.length, tree.ancestors)
        for cache, tree in zip(caches, TREES, strict=True)
    ]


def count_rows(model: TargetModel) -> dict[str, list[int]]:
    """By recurrent layer, the sequences that its own forward will have been given by call."""
    rows: dict[str, list[int]] = {}
    for name, layer in recurrent_layers(model.module).items():
        layer.forward = counted(layer.forward, rows.setdefault(name, []))
    return rows


def counted(forward: Callable[..., Tensor], calls: list[int]) -> Callable[..., Tensor]:
    def run(hidden: Tensor, *given, **named) -> Tensor:
        calls.append(len(hidden))
        return forward(hidden, *given, **named)

    return run


def assert_alike(packed: list[Output], alone: list[Output]) -> None:
    for one, other in zip(packed, alone, strict=True):
        scale = max(1.0, float(other.logits.abs().max()))
        torch.testing.assert_close(one.logits, other.logits, atol=1e-5 * scale, rtol=0)


@pytest.mark.few(4)
@needs_hybrids
@every_hybrid
@torch.inference_mode()
def test_a_packed_pass_runs_recurrent_layers_once_per_level(name):
    model = TargetModel(tiny.from_config(families.config(name)))
    assert model.shares_passes
    alone = [model.forward([segment])[0] for segment in segments_of(model)]
    segments, rows = segments_of(model), count_rows(model)
    assert_alike(model.forward(segments), alone)
    assert list(rows.values()) == [[2, 5, 9, 5]] * len(recurrent_layers(model.module))


@needs_hybrids
@torch.inference_mode()
def test_a_text_that_is_only_read_has_a_pass_of_its_own():
    model = TargetModel(tiny.from_config(families.config("lfm2")))
    prompts = [Segment.of_text(model.new_cache(8), tiny.random_tokens(6, seed)) for seed in range(2)]
    segments = segments_of(model)
    assert model.shares_passes
    rows = count_rows(model)
    with prompts[0].cache.recurrent.reading(), prompts[1].cache.recurrent.reading():
        model.forward([prompts[0], *segments, prompts[1]])
    assert list(rows.values()) == [[1, 2, 5, 9, 5, 1]] * len(rows)


@needs_hybrids
@pytest.mark.parametrize("part", ["in_proj", "out_proj"])
@torch.inference_mode()
def test_hooks_on_a_projection_see_every_node_of_a_packed_pass_once(part):
    module, seen = tiny.from_config(families.config("lfm2")), []

    def hook(_: object, given: tuple[Tensor], out: Tensor) -> Tensor:
        seen.append(given[0].shape[:2].numel())
        return out * 2 + 0.5

    layers = recurrent_layers(module).values()
    for layer in layers:
        getattr(layer, part).register_forward_hook(hook)
    model = TargetModel(module)
    assert model.shares_passes
    alone = [model.forward([segment])[0] for segment in segments_of(model)]
    segments = segments_of(model)
    seen.clear()
    assert_alike(model.forward(segments), alone)
    assert sum(seen) == len(layers) * sum(tree.size for tree in TREES)
