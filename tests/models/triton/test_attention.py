"""Attention of the Triton kernels: near to float64, and the same bits for a node in any pass."""

import pytest

pytest.importorskip("triton")

import helpers.triton_interpreter  # noqa: F401, I001

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.models import CacheLayout, Segment
from drafttree.models.attention.varlen_attention import Prefixes
from drafttree.models.cache.buffer_pool import PADDING_ROW, PooledCache, RangePool
from drafttree.models.cache.kv_cache import layer_rows
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.recorded.packed_inputs import PackedAttention
from drafttree.models.triton import attention
from drafttree.models.triton.attention import (
    PackedTrees,
    TextNodes,
    TreeSizes,
    TritonAttention,
    attend_to_trees,
    workspace_size,
)
from drafttree.models.windows import EVERYTHING, LossyWindow, Span
from helpers.varlen import stand_in
from testing import fused_families, tiny

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ROWS = 2000
TREE = (-1, 0, 0, 1, 1, 2, 3, 6, 7)
"""Parents of nodes in a tree, in which node 8 has five ancestors."""


@dataclass
class Text:
    """A text whose numbers follow from its seed and a row's place: the queries, keys and values of its tokens.

    Attributes:
        seed: of the committed places and of the chain of nodes 0, 1, 3, 6, 7, 8 of `TREE`, which go on from them.
        length: committed rows.
        parents: parents of the nodes in the pass.
        chain: nodes of the tree that have the numbers of the text's later places, by depth.
        first: the first row.
        dropped: rows that a lossy window has dropped, of which the committed rows are less.
    """

    seed: int
    length: int
    parents: Sequence[int] = (-1,)
    chain: Sequence[int] = (0,)
    first: int = 1
    dropped: int = 0
    sinks: int = 0
    visible: Array = field(init=False)

    def __post_init__(self) -> None:
        self.visible = np.eye(len(self.parents), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                self.visible[node] |= self.visible[parent]

    @property
    def committed(self) -> int:
        return self.length + self.dropped

    def states(self, heads: int, width: int, salt: int) -> Tensor:
        """Float32 `[heads, committed rows and nodes, width]` of queries (0), keys (1) or values (2)."""
        nodes = len(self.parents)
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        by_place = torch.randn(ROWS, heads, width, generator=generator)
        others = torch.randn(nodes, heads, width, generator=generator)
        for depth, node in enumerate(self.chain):
            others[node] = by_place[self.committed + depth]
        kept = [*range(self.sinks), *range(self.sinks + self.dropped, self.committed)] if self.dropped else None
        committed = by_place[: self.committed] if kept is None else by_place[kept]
        return torch.cat((committed, others)).transpose(0, 1)


@dataclass
class Layer:
    """Sizes and limits of an attention layer."""

    key_heads: int = 2
    groups: int = 2
    width: int = 24
    dtype: torch.dtype = torch.float32
    span: Span = EVERYTHING
    window: LossyWindow | None = None
    scale: float = 0.3

    def run(
        self, texts: Sequence[Text], capacity: int = ROWS, sizes: TreeSizes | None = None, out: Tensor | None = None
    ) -> list[Tensor]:
        """The results `[nodes, heads, width]` of a pass over the texts; rows that are not written hold NaN."""
        keys, values = torch.full((2, self.key_heads, capacity, self.width), torch.nan, dtype=self.dtype)
        queries = []
        for text in texts:
            rows = slice(text.first, text.first + text.length + len(text.parents))
            assert keys[:, rows].isnan().all()
            assert rows.stop <= capacity
            keys[:, rows] = text.states(self.key_heads, self.width, 1).to(self.dtype)
            values[:, rows] = text.states(self.key_heads, self.width, 2).to(self.dtype)
            query = text.states(self.key_heads * self.groups, self.width, 0)[:, text.length :]
            queries.append(query.transpose(0, 1).to(self.dtype))
        nodes = [TextNodes(text.first, text.length, text.visible, text.dropped) for text in texts]
        sizes = sizes or TreeSizes.of(nodes)
        query = torch.cat(queries)
        padding = query.new_full((sizes.nodes - len(query), *query.shape[1:]), torch.nan)
        trees = PackedTrees(*map(torch.from_numpy, PackedTrees.of(nodes, sizes)))
        result = attend_to_trees(
            torch.cat((query, padding)), (keys, values), trees, sizes, self.scale, self.span, self.window, out=out
        )
        assert not result[len(query) :].any()
        return [*result[: len(query)].unflatten(1, (-1, self.width)).split([len(text.parents) for text in texts])]

    def reference(self, text: Text) -> Tensor:
        """The results of dense attention in float64."""
        heads = self.key_heads * self.groups
        query = text.states(heads, self.width, 0)[:, text.length :].to(self.dtype).double()
        keys, values = (
            text.states(self.key_heads, self.width, salt).to(self.dtype).double().repeat_interleave(self.groups, 0)
            for salt in (1, 2)
        )
        committed = torch.arange(text.length)
        if text.dropped:
            committed = torch.where(committed < text.sinks, committed, committed + text.dropped)
        places = torch.from_numpy(text.committed + text.visible.sum(1) - 1)
        key_places = torch.cat((committed, places))
        visible = torch.cat((torch.ones(len(text.parents), text.length).bool(), torch.from_numpy(text.visible)), 1)
        for limit in (self.span, self.window):
            if limit not in (None, EVERYTHING):
                visible &= ~limit.hides(places[:, None], key_places)
        scores = (query @ keys.transpose(1, 2) * self.scale).masked_fill(~visible, -torch.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1)

    def check(self, texts: Sequence[Text], results: Sequence[Tensor]) -> float:
        """The largest gap to the references, which is small."""
        gaps = []
        for text, result in zip(texts, results, strict=True):
            reference = self.reference(text)
            gaps.append(float((result.double() - reference).abs().max() / reference.abs().max()))
        assert all(gap < TOLERANCES[self.dtype] for gap in gaps)
        return max(gaps)


def chain(seed: int, length: int, nodes: int, first: int = 1) -> Text:
    """A part of a prompt, or a single token."""
    return Text(seed, length, range(-1, nodes - 1), range(nodes), first)


def tree(seed: int, length: int, first: int = 1, parents: Sequence[int] = TREE) -> Text:
    """A tree in which the path of node 8 goes on as the text does."""
    return Text(seed, length, parents, (0, 1, 3, 6, 7, 8), first)


def company() -> list[Text]:
    """Texts of all kinds: without committed rows, with one, about a split, with parts of prompts."""
    return [tree(1, 300, 400), chain(2, 0, 11, 10), tree(3, 250, 800), chain(4, 1, 1, 60), chain(5, 520, 1, 1200)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("groups", [1, 3])
def test_results_are_near_to_those_of_float64(dtype, groups):
    layer = Layer(groups=groups, dtype=dtype)
    layer.check(company(), layer.run(company()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_token_has_the_same_bits_drafted_and_committed(dtype):
    """At the end of a path in a tree, in parts of prompts, and behind committed rows, as plain decoding computes it."""
    layer = Layer(key_heads=1, groups=3, dtype=dtype)
    for length in (0, 59, 63, 64, 251, 256):
        (drafted,) = layer.run([tree(7, length)])
        for depth, node in enumerate(tree(7, length).chain):
            (plain,) = layer.run([chain(7, length + depth, 1, 5)])
            assert torch.equal(drafted[node], plain[0]), (length, depth)
        (prompt_part,) = layer.run([chain(7, max(length - 20, 0), 26 + min(length - 20, 0))])
        path = drafted[[0, 1, 3, 6, 7, 8]]
        assert torch.equal(prompt_part[-6:], path)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_company_place_and_capacity_change_nothing(dtype):
    layer = Layer(dtype=dtype)
    together = layer.run(company())
    backwards = layer.run(company()[::-1])[::-1]
    for text, result, other_result in zip(company(), together, backwards, strict=True):
        assert torch.equal(result, other_result)
        (alone,) = layer.run([replace(text, first=3)], capacity=900)
        assert torch.equal(result, alone)


def test_sizes_change_nothing():
    layer = Layer(dtype=torch.bfloat16)
    sizes = TreeSizes(nodes=64, tiles=20, own_rows=128, splits=9)
    for result, other_result in zip(layer.run(company()), layer.run(company(), sizes=sizes), strict=True):
        assert torch.equal(result, other_result)
    with pytest.raises(ValueError, match="too small"):
        layer.run(company(), sizes=sizes._replace(tiles=3))


def test_a_node_has_the_same_bits_in_any_tree():
    """Trees of random shapes which all have one path: interleaved with other nodes, in several tiles."""
    layer = Layer(dtype=torch.bfloat16)
    generator = np.random.default_rng(0)
    (wanted,) = layer.run([chain(9, 190, 5)])
    for _ in range(4):
        parents, path = [-1], [0]
        while len(path) < 5:
            if generator.random() < 0.35:
                path.append(len(parents))
                parents.append(path[-2])
            else:
                parents.append(int(generator.integers(len(parents))))
        text = Text(9, 190, parents, path, 30)
        (found,) = layer.run([text])
        assert torch.equal(found[path], wanted)
        layer.check([text], [found])


SPANS = {
    "window": (Span(window=70), None),
    "short window": (Span(window=5), None),
    "long window": (Span(window=300), None),
    "chunk": (Span(chunk=100), None),
    "lossy": (EVERYTHING, LossyWindow(90, 4)),
    "lossy, many sinks": (EVERYTHING, LossyWindow(30, 70)),
    "both": (Span(window=200), LossyWindow(90, 4)),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("limits", SPANS.values(), ids=SPANS)
@pytest.mark.parametrize("is_serial", [False, True], ids=["parallel", "serial"])
def test_layers_with_windows(limits, is_serial, monkeypatch):
    """The nodes of the last text see from the places 61 to 80 on, which are of two blocks, with a window of 70."""
    if is_serial:
        monkeypatch.setattr(attention, "SERIAL_NODES", 1)
    layer = Layer(key_heads=1, dtype=torch.bfloat16, span=limits[0], window=limits[1])
    texts = [*company(), chain(6, 130, 20, 1750)]
    results = layer.run(texts)
    layer.check(texts, results)
    for text, result in zip(texts, results, strict=True):
        for depth in {0, len(text.chain) // 2, len(text.chain) - 1}:
            (plain,) = layer.run([chain(text.seed, text.length + depth, 1)])
            assert torch.equal(plain[0], result[text.chain[depth]])


def test_rows_that_a_lossy_window_has_dropped_change_nothing():
    layer = Layer(dtype=torch.bfloat16, window=LossyWindow(90, 4))
    (kept,) = layer.run([tree(3, 400)])
    for dropped in (1, 150, 305):
        text = replace(tree(3, 400 - dropped), dropped=dropped, sinks=4)
        (found,) = layer.run([text])
        assert torch.equal(found, kept)
        layer.check([text], [found])


def test_reading_all_splits_in_one_program_changes_nothing(monkeypatch):
    layer = Layer(dtype=torch.bfloat16)
    texts = [*company(), chain(6, 700, 3, 2000)]
    parallel = layer.run(texts, capacity=3000)
    monkeypatch.setattr(attention, "SERIAL_NODES", 1)
    for result, other_result in zip(layer.run(texts, capacity=3000), parallel, strict=True):
        assert torch.equal(result, other_result)
    layer.check(texts, parallel)


@pytest.mark.parametrize("groups", [5, 8, 33])
def test_any_number_of_query_heads_for_a_key_head(groups):
    layer = Layer(key_heads=1, groups=groups, width=16)
    texts = [tree(1, 300, 400), chain(2, 0, 11, 10)]
    results = layer.run(texts)
    layer.check(texts, results)
    (plain,) = layer.run([chain(1, 305, 1)])
    assert torch.equal(plain[0], results[0][8])


@pytest.mark.parametrize("width", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_true_widths(width, dtype):
    layer = Layer(key_heads=1, groups=4, width=width, dtype=dtype, scale=width**-0.5)
    texts = [tree(1, 270)]
    results = layer.run(texts)
    layer.check(texts, results)
    (plain,) = layer.run([chain(1, 275, 1)])
    assert torch.equal(plain[0], results[0][8])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_stays_where_it_is(monkeypatch):
    """A node with NaN in its key and value, of which its descendants have NaN, and no other node."""
    layer = Layer(dtype=torch.bfloat16)
    wanted, other_wanted = layer.run([tree(1, 100), chain(5, 30, 20, 1200)])
    states = Text.states

    def damaged(text: Text, heads: int, width: int, salt: int) -> Tensor:
        found = states(text, heads, width, salt)
        if salt:
            found[:, text.length + 6] = torch.nan if text.seed == 1 else torch.inf
        return found

    monkeypatch.setattr(Text, "states", damaged)
    found, other_found = layer.run([tree(1, 100), chain(5, 30, 20, 1200)])
    assert found[6:].isnan().all()
    assert torch.equal(found[:6], wanted[:6])
    assert torch.equal(other_found[:6], other_wanted[:6])
    assert not other_found[6:].isfinite().any()


def test_dirty_memory_changes_nothing():
    texts = [TextNodes(1, 300, tree(1, 300).visible)]
    sizes = TreeSizes.of(texts)
    trees = PackedTrees(*map(torch.from_numpy, PackedTrees.of(texts, sizes)))
    query = torch.randn(sizes.nodes, 4, 24)
    rows = torch.randn(2, 400, 24), torch.randn(2, 400, 24)
    wanted = attend_to_trees(query, rows, trees, sizes, 0.3)
    for dirt in (torch.nan, torch.inf, 1e30):
        workspace = torch.full((workspace_size(sizes, 4, 24) + 5,), dirt)
        out = torch.full((sizes.nodes, 96), dirt)
        assert attend_to_trees(query, rows, trees, sizes, 0.3, workspace=workspace, out=out) is out
        assert torch.equal(out, wanted)


def test_strided_queries():
    """Queries as views of a wider product's results."""
    texts = [TextNodes(1, 70, tree(1, 70).visible)]
    sizes = TreeSizes.of(texts)
    trees = PackedTrees(*map(torch.from_numpy, PackedTrees.of(texts, sizes)))
    heads = torch.randn(sizes.nodes, 12, 24)
    rows = torch.randn(2, 400, 24), torch.randn(2, 400, 24)
    for query in (heads[:, :4], heads[:, ::3]):
        found = attend_to_trees(query, rows, trees, sizes, 0.3)
        assert torch.equal(found, attend_to_trees(query.contiguous(), rows, trees, sizes, 0.3))
    with pytest.raises(ValueError, match="stride"):
        attend_to_trees(heads[..., ::2][:, :4], (rows[0][..., :12], rows[1][..., :12]), trees, sizes, 0.3)


def test_what_does_not_fit_is_refused():
    texts = [TextNodes(1, 3, np.ones((1, 1), dtype=bool))]
    sizes = TreeSizes.of(texts)
    trees = PackedTrees(*map(torch.from_numpy, PackedTrees.of(texts, sizes)))
    query = torch.zeros(1, 4, 16)
    rows = torch.zeros(2, 9, 16), torch.zeros(2, 9, 16)
    narrow_rows = rows[0], torch.zeros(2, 9, 8)
    for inputs, message in (
        ((query[:, :3], rows, 1.0), "do not fit"),
        ((query.double(), rows, 1.0), "do not fit keys"),
        ((torch.zeros(2, 4, 16), rows, 1.0), "do not fit"),
        ((query, narrow_rows, 1.0), "do not fit"),
        ((query, rows, 0.0), "not positive"),
    ):
        with pytest.raises(ValueError, match=message):
            attend_to_trees(inputs[0], inputs[1], trees, sizes, inputs[2])
    with pytest.raises(ValueError, match="workspace"):
        attend_to_trees(query, rows, trees, sizes, 1.0, workspace=torch.zeros(3))
    with pytest.raises(ValueError, match="results"):
        attend_to_trees(query, rows, trees, sizes, 1.0, out=torch.zeros(1, 4, 16))


LAYOUT = CacheLayout.uniform(1, 2, 8)


def pooled_segments(pool: RangePool, lengths: Sequence[int]) -> list[Segment]:
    """Trees behind random committed rows of caches of a pool."""
    segments = []
    for seed, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(seed)
        cache = PooledCache(LAYOUT, 700, pool)
        cache.reserve(torch.zeros(0), 700)
        if length:
            for _, _, keys, values in cache.pass_rows(length):
                keys[:] = torch.randn(keys.shape, generator=generator)
                values[:] = torch.randn(values.shape, generator=generator)
            cache.grow(np.arange(length))
            cache.commit(range(length))
        visible = tree(seed, length).visible
        segments.append(Segment(cache, np.arange(9), length + visible.sum(1) - 1, visible))
    return segments


def triton_attention(segments: Sequence[Segment], span: Span = EVERYTHING) -> TritonAttention:
    texts = [TextNodes.of(segment) for segment in segments]
    sizes = TreeSizes.of(texts)
    return TritonAttention(PackedTrees(*map(torch.from_numpy, PackedTrees.of(texts, sizes))), sizes, span)


@pytest.mark.parametrize("span", [EVERYTHING, Span(window=40)], ids=["all", "window"])
@torch.inference_mode()
def test_attention_is_that_of_row_attention(span):
    """And of another layer's rows, which are there already."""
    pool = RangePool(LAYOUT)
    segments = pooled_segments(pool, (300, 0, 70))
    query, key, value = torch.randn(27, 6, 8), *torch.randn(2, 27, 2, 8)
    inputs = PassInputs.of(segments, torch.zeros(0))
    wanted = inputs.attention(span, 3).attend(query, key, value, inputs.rows[0], 0.3)
    rows = pool.buffers[0][0, 0], pool.buffers[0][1, 0]
    stored = [stored_rows.clone() for stored_rows in rows]
    for segment in segments:
        for _, _, keys, values in segment.cache.pass_rows(9):
            keys.fill_(torch.nan)
            values.fill_(torch.nan)
    ours = triton_attention(segments, span)
    found = ours.attend(query, key, value, rows, 0.3)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-6)
    assert torch.equal(rows[0], stored[0])
    assert torch.equal(rows[1], stored[1])
    assert torch.equal(ours.read(query, rows, 0.3), found)


@torch.inference_mode()
def test_attention_is_that_of_packed_attention():
    pool = RangePool(LAYOUT)
    segments = pooled_segments(pool, (300, 0, 70))
    query, key, value = torch.randn(27, 6, 8), *torch.randn(2, 27, 2, 8)
    rows = pool.buffers[0][0, 0], pool.buffers[0][1, 0]
    found = triton_attention(segments).attend(query, key, value, rows, 0.3)
    lengths = torch.tensor([segment.cache.length for segment in segments])
    starts = torch.tensor([segment.cache.pooled.start for segment in segments])
    new_rows = torch.cat([torch.arange(first, first + 9) for first in (starts + lengths).tolist()])
    visible = torch.block_diag(*(torch.from_numpy(segment.visible).float() for segment in segments)).bool()
    packed = PackedAttention(
        stand_in(),
        new_rows,
        new_rows,
        visible.repeat_interleave(3, 0),
        Prefixes(
            torch.tensor((0, 27, 54, 81)).int(),
            lengths.clamp(min=1).int(),
            torch.tensor([*starts, 0]).int(),
            27,
        ),
        (lengths > 0).repeat_interleave(27),
    )
    wanted = packed.attend(query, key, value, rows, 0.3)
    torch.testing.assert_close(found, wanted, atol=2e-6, rtol=2e-6)


@torch.inference_mode()
def test_rows_that_were_drafted_in_earlier_passes():
    """The tree of a draft head, of which each pass computes a level."""
    pool = RangePool(LAYOUT)
    (whole,) = pooled_segments(pool, (77,))
    query, key, value = torch.randn(9, 6, 8), *torch.randn(2, 9, 2, 8)
    rows = pool.buffers[0][0, 0], pool.buffers[0][1, 0]
    wanted = triton_attention([whole]).attend(query, key, value, rows, 0.3)
    for level in (slice(0, 1), slice(1, 3), slice(3, 6), slice(6, 9)):
        level_segment = Segment(
            whole.cache, whole.tokens[level], whole.positions[level], whole.visible[level, : level.stop]
        )
        found = triton_attention([level_segment]).attend(query[level], key[level], value[level], rows, 0.3)
        assert torch.equal(found, wanted[level])


def test_padding_nodes_write_the_padding_row():
    texts = [TextNodes(40, 3, np.ones((1, 1), dtype=bool))]
    sizes = TreeSizes(4, 2, 3, 1)
    trees = PackedTrees(*map(torch.from_numpy, PackedTrees.of(texts, sizes)))
    rows = torch.zeros(2, 50, 16), torch.zeros(2, 50, 16)
    states = torch.randn(3, 4, 2, 16)
    TritonAttention(trees, sizes).attend(*states, rows, 1.0)
    assert {PADDING_ROW, 43} == {*rows[0].any(2).any(0).nonzero()[:, 0].tolist()}
    assert torch.equal(rows[1][:, 43], states[2, 0])


@pytest.mark.few(4)
@pytest.mark.parametrize("name", fused_families.CONFIGS)
@torch.inference_mode()
def test_fused_layers_of_all_families(name):
    """Layers of several kinds and widths, which share rows or store them, read the same arrays."""
    backend = FusedBackend(tiny.from_config(fused_families.CONFIGS[name]()))
    pool = RangePool(backend.layout)
    segments = []
    for seed, length in enumerate((25, 0, 9)):
        cache = PooledCache(backend.layout, 64, pool)
        if length:
            backend.forward([Segment.of_text(cache, tiny.random_tokens(length, seed))])
            cache.commit(range(length))
        drawn_tree = tiny.random_tree((1, 3, 4), seed)
        segments.append(Segment(cache, drawn_tree.tokens, drawn_tree.depths + length, drawn_tree.ancestors))
    for segment in segments:
        segment.cache.reserve(backend.empty, segment.nodes)
    inputs = PassInputs(
        tokens=torch.from_numpy(np.concatenate([segment.tokens for segment in segments]))[None],
        positions=torch.from_numpy(np.concatenate([segment.positions for segment in segments]))[None],
        hidden=backend.empty,
        rows=[(keys[0], values[0]) for keys, values in layer_rows(backend.layout, pool.buffers)],
        attention=lambda span, _: triton_attention(segments, span),
    )
    x, _ = backend.run_layers(inputs, ())
    found = backend.logits(x)
    wanted = torch.cat([output.logits for output in backend.forward(segments)], 1)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=2e-5)
