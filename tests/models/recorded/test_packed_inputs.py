"""Packed passes give each request what it gets alone; one call attends to all prefixes, one to all trees."""

import gc
from copy import deepcopy
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.loading import make_policy
from drafttree.models import CacheLayout, LossyWindow, Output, Segment, TargetModel
from drafttree.models.attention.varlen_attention import Prefixes, find_varlen_attention
from drafttree.models.backend_choice import choose_backend
from drafttree.models.base import Backend, append
from drafttree.models.cache.buffer_pool import MIN_CAPACITY, PADDING_ROW, PooledCache, RangePool
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded.packed_inputs import BUCKETS, MAX_REQUESTS, PackedAttention
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.wrapped_backends import WindowedBackend
from helpers.replays import Operations, unrecorded
from helpers.varlen import packed, stand_in, varlen_attn
from testing import tiny

LAYOUT = CacheLayout.uniform(2, 3, 4)
RECORDERS = {"recorded": Operations, "unrecorded": lambda: unrecorded}


def close(one: Tensor, other: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("lengths", [(300, 0, 7), (0, 0, 0), (256, 512, 1)], ids=str)
def test_merged_attention_is_dense_attention(groups, lengths):
    """Three requests, the second of which lies before the first; their trees are behind the prefixes of all."""
    nodes, heads, width = (2, 1, 3), 2, 8
    generator = torch.Generator().manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    rows = draw(2, heads, 1600, width).unbind(0)
    query, key, value = draw(6, groups * heads, width), *draw(2, 6, heads, width)
    places = torch.arange(1590, 1596)
    trees = torch.block_diag(*(torch.ones(each, each).tril() for each in nodes)).bool()
    firsts = [521, 3, 1040]
    visible = torch.zeros(6, 1600, dtype=torch.bool)
    visible[:, places] = trees
    for own, first, length in zip(visible.split(nodes), firsts, lengths, strict=True):
        own[:, first : first + length] = True
    prefixes = Prefixes(
        torch.tensor((0, 2, 3, 6)).int() * groups,
        torch.tensor(lengths).clamp(min=1).int(),
        torch.tensor([*firsts, 0]).int(),
        3 * groups,
    )
    has_prefix = torch.tensor(lengths).repeat_interleave(torch.tensor(nodes)) > 0
    by_query = (each.repeat_interleave(groups, 0) for each in (trees, has_prefix))
    attention = PackedAttention(stand_in(), places, places, next(by_query), prefixes, next(by_query))
    found = attention.attend(query, key, value, rows, 0.3)
    keys, values = (each.repeat_interleave(groups, 0) for each in rows)
    scores = (query.transpose(0, 1) @ keys.transpose(1, 2) * 0.3).masked_fill(~visible, -torch.inf)
    close(found, (scores.softmax(-1) @ values).transpose(0, 1).flatten(1), 1e-6)
    assert torch.equal(rows[0][:, places], key.transpose(0, 1))


def segments_of(model: Backend, lengths: tuple[int, ...], branches: tuple[int, ...] = (3, 2)) -> list[Segment]:
    """A tree behind a prefix of each length."""
    found = []
    for seed, length in enumerate(lengths):
        cache, tree = model.new_cache(16), tiny.random_tree(branches, seed)
        if length:
            append(model, cache, tiny.random_tokens(length, seed))
        found.append(Segment(cache, tree.tokens, tree.depths + length, tree.ancestors))
    return found


def check(model: TargetModel, alone: TargetModel, lengths: tuple[int, ...], tolerance: float = 1e-5) -> None:
    """A packed pass, against passes over each by another backend of the same module."""
    outputs = model.forward(segments_of(model, lengths), hidden_layers=(1,))
    for output, segment in zip(outputs, segments_of(alone, lengths), strict=True):
        own = tiny.run(alone, *segment[:4], hidden_layers=(1,))
        close(output.logits, own.logits, tolerance)
        close(output.hidden[0], own.hidden[0], tolerance)


def long_llama(dtype: torch.dtype = torch.float32, device: str = "cpu"):
    config = tiny.CONFIGS["llama"]()
    config.max_position_embeddings = 4 * MIN_CAPACITY
    return tiny.from_config(config).to(device, dtype)


@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("lengths", [(0, 0), (5, 0, 256), (255, 257, 1), (700, 3, 0, 12)], ids=str)
@torch.inference_mode()
def test_prefixes_of_all_lengths(lengths, recorder):
    model = packed(long_llama(), RECORDERS[recorder]())
    check(model, TargetModel(model.module, FusedBackend), lengths)


def gap(outputs: list[Output], exact: list[Tensor]) -> float:
    """The largest difference of any logits."""
    found = zip(outputs, exact, strict=True)
    return max(float((output.logits.float() - logits).abs().max()) for output, logits in found)


def check_rounding(model: TargetModel, lengths: tuple[int, ...]) -> None:
    """Logits of a packed pass are as near to those of float32 as those of passes over each."""
    exact, alone = (TargetModel(module, FusedBackend) for module in (deepcopy(model.module).float(), model.module))
    logits = [tiny.run(exact, *segment[:4]).logits for segment in segments_of(exact, lengths)]
    own = gap([tiny.run(alone, *segment[:4]) for segment in segments_of(alone, lengths)], logits)
    assert 0 < gap(model.forward(segments_of(model, lengths)), logits) <= 2 * own


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@torch.inference_mode()
def test_reduced_precision_differs_by_rounding_only(dtype):
    check_rounding(packed(long_llama(dtype), unrecorded), (300, 0, 9))


@pytest.mark.parametrize("recorder", RECORDERS)
@torch.inference_mode()
def test_a_layer_attends_to_all_prefixes_in_one_call(recorder):
    calls = []

    def counted(*arguments, **named):
        calls.append(named["seqused_k"].shape)
        return varlen_attn(*arguments, **named)

    model = packed(long_llama(), RECORDERS[recorder](), counted)
    calls.clear()
    model.forward(segments_of(model, (4, 9, 2)))
    assert len(calls) == tiny.LAYERS


@torch.inference_mode()
def test_passes_of_about_the_same_sizes_are_recorded_once():
    recorder = Operations()
    model = packed(long_llama(), recorder)
    model.backend.reserve(8 * MIN_CAPACITY)
    for lengths in ((4, 9, 2), (1, 0), (300, 8, 2)):
        segments = segments_of(model, lengths)
        before = recorder.recorded
        model.forward(segments)
    assert recorder.recorded == before  # 12 and 18 nodes: buckets of 16 and 32
    assert len(model.backend._passes._pool.passes) == 2


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("lengths", "branches"), [((1,) * (MAX_REQUESTS + 1), ()), ((3, 0), (1,) * BUCKETS[-1])], ids=["requests", "nodes"]
)
@torch.inference_mode()
def test_larger_passes_run_unrecorded(lengths, branches):
    module = tiny.build("llama")
    model, alone = packed(module, Operations()), TargetModel(module, FusedBackend)
    outputs = model.forward(segments_of(model, lengths, branches))
    assert not model.backend._passes._pool.passes
    for output, segment in zip(outputs, segments_of(alone, lengths, branches), strict=True):
        close(output.logits, tiny.run(alone, *segment[:4]).logits, 1e-4)


@pytest.mark.parametrize("recorder", RECORDERS)
@torch.inference_mode()
def test_a_damaged_text_damages_no_other(recorder):
    module = tiny.build("llama")
    model, alone = packed(module, RECORDERS[recorder]()), TargetModel(module, FusedBackend)
    for _ in range(2):
        segments = segments_of(model, (4, 9, 0))
        for buffer in segments[1].cache._buffers:
            buffer.fill_(torch.nan)
        outputs = model.forward(segments)
        assert outputs[1].logits.isnan().all()
        for place in (0, 2):
            own = tiny.run(alone, *segments_of(alone, (4, 9, 0))[place][:4])
            close(outputs[place].logits, own.logits)
        del segments


@pytest.mark.parametrize("recorder", RECORDERS)
@torch.inference_mode()
def test_a_request_may_move_the_rows_of_all(recorder):
    """The second text fills its rows, so the pass makes room, for which the rows of the first are moved too."""
    module = long_llama()
    model, alone = packed(module, RECORDERS[recorder]()), TargetModel(module, FusedBackend)
    results, moved = [], []
    for each in (model, alone):
        first, second = segments_of(each, (3, MIN_CAPACITY - 112), (1,) * 120)
        before = first.cache.committed()[0][0].data_ptr()
        scored = each.forward([first, second])
        moved.append(before != first.cache.committed()[0][0].data_ptr())
        results.append(scored + each.forward([*segments_of(each, (5,)), one(first), one(second)]))
    assert moved[0]
    for ours, theirs in zip(*results, strict=True):
        close(ours.logits, theirs.logits)


@torch.inference_mode()
def test_rows_may_be_moved_in_a_pass_with_a_call_per_request():
    """Which texts with a window need. The second one takes its first rows in the pass, for which those of all move."""
    module, window = tiny.build("llama"), LossyWindow(6, 2)
    backend = WindowedBackend(RecordedBackend(FusedBackend(module), Operations(), stand_in()), window)
    segments = segments_of(backend, (3, 0))
    first = segments[0]
    before = first.cache.committed()[0][0].data_ptr()
    outputs = backend.forward(segments)
    assert before != first.cache.committed()[0][0].data_ptr()
    alone = WindowedBackend(FusedBackend(module), window)
    for output, segment in zip(outputs, segments_of(alone, (3, 0)), strict=True):
        close(output.logits, tiny.run(alone, *segment[:4]).logits)


def one(segment: Segment) -> Segment:
    """The root of a tree that was scored, committed, and another node below it."""
    segment.cache.commit([0])
    return Segment(segment.cache, np.array([7]), segment.positions[:1] + 1, np.ones((1, 1), dtype=bool))


def pooled(pool: RangePool, rows: int, value: float) -> PooledCache:
    """A cache with committed rows of one value."""
    cache = PooledCache(LAYOUT, rows, pool)
    cache.reserve(torch.zeros(0), rows)
    for _, _, keys, values in cache.pass_rows(rows):
        keys[:] = values[:] = value
    cache.grow(np.arange(rows))
    cache.commit(range(rows))
    return cache


def ranges(*caches: PooledCache) -> list[tuple[int, int]]:
    return sorted((cache.pooled.start, cache.pooled.start + cache.capacity) for cache in caches)


@torch.inference_mode()
def test_ranges_lie_beside_each_other_and_keep_their_rows_when_they_are_moved():
    pool = RangePool(LAYOUT)
    caches = [pooled(pool, rows, value) for value, rows in enumerate((3, 600, 40, 1500, 3), start=1)]
    found = ranges(*caches)
    assert found[0][0] == PADDING_ROW + 1
    assert all(end <= start for (_, end), (start, _) in pairwise(found))
    for value, cache in enumerate(caches, start=1):
        assert all((both == value).all() for layer in cache.committed() for both in layer)
    assert all((buffer[..., PADDING_ROW, :] == 0).all() for buffer in pool.buffers)


@torch.inference_mode()
def test_ranges_of_finished_texts_are_used_again_and_empty():
    pool = RangePool(LAYOUT)
    caches = [pooled(pool, 5, torch.nan) for _ in range(6)]
    rows = pool.rows
    del caches
    gc.collect()
    caches = [PooledCache(LAYOUT, 5, pool) for _ in range(6)]
    for cache in caches:
        cache.reserve(torch.zeros(0), 5)
        assert all((rows == 0).all() for layer in cache.pass_rows(5) for rows in layer)
    assert pool.rows == rows


@torch.inference_mode()
def test_a_gap_is_filled():
    pool = RangePool(LAYOUT)
    caches = [pooled(pool, 5, value) for value in range(6)]
    gaps, kept = ranges(*caches[1:5]), [caches[0], caches[5]]
    del caches
    gc.collect()
    again = [pooled(pool, 5, 9) for _ in range(4)]
    assert ranges(*again) == gaps
    assert [float(cache.committed()[0][0].mean()) for cache in kept] == [0, 5]


@torch.inference_mode()
def test_what_was_recorded_ends_when_the_rows_are_moved():
    pool = RangePool(LAYOUT)
    first = pooled(pool, 5, 1)
    first.pooled.passes[1, ()] = pool.passes["packed"] = lambda: ()
    pooled(pool, 5000, 2)
    assert not first.pooled.passes
    assert not pool.passes


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_kernel_that_serves_such_rows_is_found(dtype):
    assert find_varlen_attention(torch.zeros(0, dtype=dtype), 3, 16, varlen_attn)


def knows_no_lengths(*arguments, seqused_k, **named):
    raise TypeError("_flash_attention_forward() got an unexpected keyword argument")


def test_a_kernel_that_refuses_is_not_used():
    assert find_varlen_attention(torch.zeros(0), 2, 8) is None  # torch's own, which is for GPUs
    assert find_varlen_attention(torch.zeros(0), 2, 8, knows_no_lengths) is None


def wrong_firsts(*arguments, **named):
    return varlen_attn(*arguments[:4], arguments[4].clamp(max=500), *arguments[5:], **named)


def wrong_lengths(*arguments, **named):
    return varlen_attn(*arguments, **named | {"seqused_k": named["seqused_k"].flip(0).contiguous()})


def wrong_sizes(*arguments, **named):
    out, sizes = varlen_attn(*arguments, **named)
    return out, sizes.roll(1, 1)


def missing_rows(*arguments, **named):
    """As the split kernel of torch 2.13 leaves them."""
    out, sizes = varlen_attn(*arguments, **named)
    out[5:] = torch.nan
    return out, sizes


@pytest.mark.parametrize("kernel", [wrong_firsts, wrong_lengths, wrong_sizes, missing_rows])
def test_a_kernel_that_gives_something_else_is_not_used(kernel):
    assert find_varlen_attention(torch.zeros(0), 2, 8, kernel) is None


@pytest.mark.few(1)
@pytest.mark.parametrize("recorder", RECORDERS)
def test_texts_of_a_batch_are_those_of_each_alone(recorder):
    target, draft = (tiny.from_config(tiny.CONFIGS["llama"](), seed) for seed in (0, 1))
    target, draft = packed(target, RECORDERS[recorder]()), packed(draft, RECORDERS[recorder]())
    decoder = Decoder(target, LanguageModelDrafter(draft), make_policy("talon:budget=8"))
    plain = Decoder(TargetModel(target.module, FusedBackend))
    prompts = [tiny.random_tokens(length, length) for length in (3, 9, 1, 14)]
    for options in ({}, {"temperature": 1.0, "seed": 5}):
        together = decoder.generate(prompts, max_new_tokens=20, **options)
        alone = [plain.generate(prompt, max_new_tokens=20, **options) for prompt in prompts]
        assert [text.tokens for text in together] == [text.tokens for text in alone]


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "width"), [(2, 64), (8, 128), (1, 256), (3, 40)])
def test_torchs_kernel_serves_rows_of_several_requests(heads, width, dtype):
    """Where this fails, packed passes run with one call per request; `find_varlen_attention` says what is needed."""
    assert find_varlen_attention(torch.zeros(0, dtype=dtype, device="cuda"), heads, width)


@pytest.mark.cuda
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", [(0, 0), (5, 0, 256), (255, 257, 1), (700, 3, 0, 12), (9,) * 40], ids=str)
@torch.inference_mode()
def test_on_cuda_a_packed_pass_gives_each_what_it_gets_alone(lengths, dtype, recorded, monkeypatch):
    if not recorded:
        monkeypatch.setattr("drafttree.models.recorded.cuda_graphs.CudaGraphs.__call__", lambda *_: None)
    model = TargetModel(long_llama(dtype, "cuda"), choose_backend)
    assert isinstance(model.backend, RecordedBackend)
    passes = model.backend._passes
    assert passes._shared, "torch's kernel does not serve these rows here"
    for _ in range(3):
        check_rounding(model, lengths)
    assert bool(passes._pool.passes) is recorded


@pytest.mark.cuda
@torch.inference_mode()
def test_on_cuda_texts_of_a_batch_are_those_of_each_alone_up_to_rounding():
    """A token may differ where two are equally likely up to the rounding of the dtype."""
    target, draft = (TargetModel(long_llama(torch.bfloat16, "cuda"), choose_backend) for _ in range(2))
    decoder = Decoder(target, LanguageModelDrafter(draft), make_policy("talon:budget=16"))
    prompts = [tiny.random_tokens(length, length) for length in (3, 300, 1, 14, 520, 8)]
    texts = decoder.generate(prompts, max_new_tokens=24)
    target.release()
    for prompt, text in zip(prompts, texts, strict=True):
        ids = torch.tensor([[*prompt, *text.tokens]], device="cuda")
        logits = target.module(ids).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
        assert torch.all(logits.max(1).values - chosen <= 20 * torch.finfo(torch.bfloat16).eps * logits.abs().max())


def test_what_is_recorded_stays_where_room_was_made_beforehand():
    layout, like = CacheLayout.uniform(2, 2, 8), torch.zeros(0)
    for reserved, kept in ((8192, True), (0, False)):
        pool = RangePool(layout)
        pool.reserve(reserved, like)
        first = pool.take(512, like)
        first.buffers[0][..., :3, :] = 7.0
        pool.passes["some"] = "pass"
        others = [pool.take(1024, like) for _ in range(3)]
        assert (pool.passes == {"some": "pass"}) == kept
        assert bool((first.buffers[0][..., :3, :] == 7.0).all())
        assert not any(bool(each.buffers[0].any()) for each in others)
