"""Attention of a packed pass over the trees of several texts, whose sums depend on a node's own rows alone.

A node at place p of its text attends to the rows of the places 0 to p, its ancestors and itself. Places are cut into
splits of 256, and these into blocks of a fixed length. A split's state is computed block after block, then splits are
joined in order. So a row gives the same numbers whether it is drafted or committed, in any tree and any company.

There are two kernels. The first reads what all nodes of a tile have in common, the blocks whose rows follow each other
in memory, and reads them once for all of them. The second goes on for each node where the first ended, with the rows
of its own path, and joins the splits. A row is computed by the same steps in either: products of matrices, also for
the sums of weights, and multiplications and additions that are fused explicitly. What tensor cores add up in order of
the rows does not depend on how a tile is laid out over threads, as a reduction would.

Layers with a window, or with chunks, treat two blocks apart, since the nodes of a tile see different parts of them. The
block of the first place that a node sees and, in a lossy window, the sinks have states of their own, which are joined
last. Which blocks those are depends on p alone.
"""
# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
import triton
import triton.language as tl
from numpy import ndarray as Array
from torch import Tensor

from drafttree.models.cache.buffer_pool import PADDING_ROW, PooledCache
from drafttree.models.segment import Segment
from drafttree.models.triton.rotary import refuse_strides, rotate_and_store
from drafttree.models.windows import EVERYTHING, LossyWindow, Span

SPLIT = 256
"""Places of a split."""
TILE_NODES = 8
"""Most nodes of a tile, which are of one text."""
TILE_QUERIES = 32
"""Most queries of one program, unless more query heads share a key head."""
LOG2_E = math.log2(math.e)
LEAST_QUERIES = 16
"""Least rows of a tile of tensor cores."""
BLOCK_BYTES = 16384
"""Most bytes of the keys of a block."""
SERIAL_NODES = 256
"""From this number of nodes on, one program reads all splits: there are enough programs, and too many states."""
ARRAYS = [
    "places",
    "first_rows",
    "dropped",
    "commons",
    "shared",
    "own_starts",
    "own_rows",
    "tile_firsts",
    "tile_counts",
]
"""Arguments of kernels whose alignment follows from the number of nodes, which must not choose another compilation."""

ColumnT = TypeVar("ColumnT", Array, Tensor)


class TextNodes:
    """The nodes of one text in a pass, and the rows that they attend to.

    Args:
        first_row: index of the text's first row in the allocation.
        length: number of committed rows, which follow each other.
        visible: bool `[nodes, drafted]`, as of `Segment`: the last `nodes` drafted rows are those of the nodes.
        dropped: number of rows that a lossy window has dropped behind its sinks.

    Attributes:
        first_row: as given.
        dropped: as given.
        new_rows: `[nodes]` the rows of the nodes themselves.
        places: `[nodes]` how many rows of the text a node sees before its own, dropped ones included.
        shared: `[nodes]` the places before this one are at rows that follow each other, which the text's order gives.
        own_counts: `[nodes]` number of the rows that it sees beyond those.
        own_rows: those rows, node after node.
    """

    def __init__(self, first_row: int, length: int, visible: Array, dropped: int = 0) -> None:
        nodes, drafted = visible.shape
        first_drafted = first_row + length
        committed = length + dropped
        seen_counts = visible.sum(1)
        leading_counts = np.where(visible.all(1), drafted, visible.argmin(1))
        own_nodes, own_columns = (visible & (np.arange(drafted) >= leading_counts[:, None])).nonzero()
        self.first_row = first_row
        self.dropped = dropped
        self.new_rows = np.arange(first_drafted + drafted - nodes, first_drafted + drafted)
        self.places = committed + seen_counts - 1
        self.shared = committed + leading_counts
        self.own_counts = np.bincount(own_nodes, minlength=nodes)
        self.own_rows = first_drafted + own_columns

    @classmethod
    def of(cls, segment: Segment) -> "TextNodes":
        """The nodes of a segment, whose KV cache has room for them."""
        cache = segment.cache
        first_row = cache.pooled.start if isinstance(cache, PooledCache) else 0
        dropped = cache.windowed.dropped if cache.windowed else 0
        return cls(first_row, cache.length, segment.visible, dropped)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.places)

    @cached_property
    def tile_firsts(self) -> Array:
        """Index of the first node of each tile."""
        return np.arange(0, self.nodes, TILE_NODES)

    @cached_property
    def tile_commons(self) -> Array:
        """For each tile, a place before which all of its nodes see the same rows, which follow each other."""
        return np.minimum.reduceat(self.shared, self.tile_firsts)


class TreeSizes(NamedTuple):
    """The sizes that decide all shapes and launches of a pass; each may be larger than the pass needs.

    Attributes:
        nodes: nodes of all texts.
        tiles: tiles of all texts; at most nodes / `TILE_NODES`, plus the number of texts.
        own_rows: rows of `TextNodes.own_rows` of all texts.
        splits: splits of the longest text, its drafted rows included.
    """

    nodes: int
    tiles: int
    own_rows: int
    splits: int

    @classmethod
    def of(cls, texts: Sequence[TextNodes]) -> "TreeSizes":
        """The sizes of a pass, without padding."""
        place_count = max(int(text.places.max()) + 1 for text in texts)
        return cls(
            nodes=sum(text.nodes for text in texts),
            tiles=sum(len(text.tile_firsts) for text in texts),
            own_rows=max(sum(len(text.own_rows) for text in texts), 1),
            splits=-(-place_count // SPLIT),
        )


class NodeColumns(NamedTuple, Generic[ColumnT]):
    """What attention reads about each node; the rows of `PackedTrees.nodes`.

    Attributes:
        new_rows: index of the row where its keys and values are written.
        places: its place in the text; -1 for padding nodes, whose result is 0.
        first_rows: index of the first row of its text.
        dropped: number of rows that its text has dropped behind the sinks.
        shared: the places before this one are at rows that follow each other.
        own_starts: index in `PackedTrees.own_rows` of the row of the place `shared`; later places follow.
        commons: the least `shared` of its tile.
    """

    new_rows: ColumnT
    places: ColumnT
    first_rows: ColumnT
    dropped: ColumnT
    shared: ColumnT
    own_starts: ColumnT
    commons: ColumnT


class TileColumns(NamedTuple, Generic[ColumnT]):
    """What attention reads about each tile; the rows of `PackedTrees.tiles`.

    Attributes:
        firsts: index of its first node.
        counts: number of its nodes, 0 for a tile that is not used.
    """

    firsts: ColumnT
    counts: ColumnT


class PackedTrees(NamedTuple, Generic[ColumnT]):
    """The arrays of a pass on the host, or their copies on the device, for layers of any kind.

    Attributes:
        nodes: int32 `[7, nodes]`, see `NodeColumns`.
        tiles: int32 `[2, tiles]`, see `TileColumns`.
        own_rows: int32 `[own_rows]`: for each node, the rows of the places from `shared` on, itself the last.
    """

    nodes: ColumnT
    tiles: ColumnT
    own_rows: ColumnT

    @classmethod
    def of(cls, texts: Sequence[TextNodes], sizes: TreeSizes) -> "PackedTrees[Array]":
        """The arrays of a pass, padded to these sizes.

        Raises:
            ValueError: the sizes are too small.
        """
        least_sizes = TreeSizes.of(texts)
        if any(size < least_size for size, least_size in zip(sizes, least_sizes, strict=True)):
            raise ValueError(f"{sizes} are too small for {least_sizes}")
        trees = PackedTrees(
            np.zeros((7, sizes.nodes), dtype=np.int32),
            np.zeros((2, sizes.tiles), dtype=np.int32),
            np.full(sizes.own_rows, PADDING_ROW, dtype=np.int32),
        )
        nodes = NodeColumns(*trees.nodes)
        tiles = TileColumns(*trees.tiles)
        nodes.new_rows.fill(PADDING_ROW)
        nodes.places.fill(-1)
        node = tile = own_row = 0
        for text in texts:
            node_slice = slice(node, node + text.nodes)
            tile_slice = slice(tile, tile + len(text.tile_firsts))
            tile_counts = np.minimum(text.nodes - text.tile_firsts, TILE_NODES)
            nodes.new_rows[node_slice] = text.new_rows
            nodes.places[node_slice] = text.places
            nodes.first_rows[node_slice] = text.first_row
            nodes.dropped[node_slice] = text.dropped
            nodes.shared[node_slice] = text.shared
            nodes.own_starts[node_slice] = own_row + text.own_counts.cumsum() - text.own_counts
            nodes.commons[node_slice] = text.tile_commons.repeat(tile_counts)
            tiles.firsts[tile_slice] = node + text.tile_firsts
            tiles.counts[tile_slice] = tile_counts
            trees.own_rows[own_row : own_row + len(text.own_rows)] = text.own_rows
            node = node_slice.stop
            tile = tile_slice.stop
            own_row += len(text.own_rows)
        return trees


class TritonAttention(NamedTuple):
    """Attention of layers of one kind in a packed pass. See `PassAttention`.

    Attributes:
        trees: int32 tensors of the pass, on its device.
        sizes: the sizes to which they are padded. They decide which launches a recorded pass repeats.
        span: how far back the layers attend.
        lossy_window: the window of all texts of the pass, None if they attend to all rows.
        workspace: memory of `workspace_size` float32 numbers or more, whatever it holds; all layers of a pass may share
            it. None to allocate it in every call.
    """

    trees: PackedTrees[Tensor]
    sizes: TreeSizes
    span: Span = EVERYTHING
    lossy_window: LossyWindow | None = None
    workspace: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`; `rows` are all keys and values `[key heads, rows, width]` of a layer."""
        self.store(query, key, value, rows)
        return self.read(query, rows, scale)

    def store(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rows: tuple[Tensor, Tensor],
        cosine: Tensor | None = None,
        sine: Tensor | None = None,
    ) -> None:
        """Rotate queries in place, and write rotated keys, and values, to the rows of their nodes.

        Args:
            query: as of `attend`.
            key: as of `attend`; it is not changed.
            value: as of `attend`.
            rows: as of `attend`.
            cosine: as of `rotate_and_store`.
            sine: as of `rotate_and_store`.
        """
        rotate_and_store(query, key, value, rows, NodeColumns(*self.trees.nodes).new_rows, cosine, sine)

    def read(self, query: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`."""
        return attend_to_trees(
            query, rows, self.trees, self.sizes, scale, self.span, self.lossy_window, workspace=self.workspace
        )


def workspace_size(sizes: TreeSizes, heads: int, width: int) -> int:
    """The float32 numbers that `attend_to_trees` needs beside its inputs, for this many query heads."""
    slots = 2 if sizes.nodes >= SERIAL_NODES else sizes.splits
    return slots * sizes.nodes * heads * (width + 2)


def _check_rows(query: Tensor, keys: Tensor, values: Tensor, sizes: TreeSizes) -> None:
    """Check that queries, keys and values belong together; arguments and errors are those of `attend_to_trees`."""
    nodes, heads, width = query.shape
    if keys.shape != values.shape or keys.shape[2] != width or heads % len(keys) or nodes != sizes.nodes:
        raise ValueError(f"queries {[*query.shape]} do not fit {sizes} and keys {[*keys.shape]}")
    if not query.dtype == keys.dtype == values.dtype or not query.is_floating_point():
        raise ValueError(f"queries of {query.dtype} do not fit keys of {keys.dtype} and values of {values.dtype}")
    refuse_strides(query, keys, values)


def _constants(query: Tensor, groups: int, span: Span, lossy_window: LossyWindow | None) -> dict[str, Any]:
    """What both kernels are compiled for."""
    heads, width = query.shape[1:]
    columns = max(triton.next_power_of_2(width), LEAST_QUERIES)
    return dict(  # noqa: C408, as the arguments of a call
        GROUPS=groups,
        HEADS=heads,
        WIDTH=width,
        COLUMNS=columns,
        BLOCK=min(max(BLOCK_BYTES // (columns * query.element_size()), 16), 64),
        SPLIT_PLACES=SPLIT,
        SERIAL=len(query) >= SERIAL_NODES,
        WINDOW=span.window or 0,
        CHUNK=span.chunk or 0,
        LOSSY=lossy_window.size if lossy_window else 0,
        SINKS=lossy_window.sinks if lossy_window else 0,
        num_warps=4,
        num_stages=2,
        enable_fp_fusion=False,  # so that both kernels round the same sums in the same way
    )


def _result(query: Tensor, out: Tensor | None) -> Tensor:
    """The tensor for the result; arguments and errors are those of `attend_to_trees`."""
    nodes, heads, width = query.shape
    out = query.new_empty(nodes, heads * width) if out is None else out
    if out.shape != (nodes, heads * width) or out.dtype != query.dtype or not out.is_contiguous():
        raise ValueError(f"results of {out.dtype} {[*out.shape]} do not fit queries {[*query.shape]}")
    return out


def _states(workspace: Tensor | None, query: Tensor, sizes: TreeSizes) -> tuple[Tensor, Tensor, Tensor]:
    """The sums, tops and totals of the splits, in the workspace.

    Args:
        workspace: as for `attend_to_trees`.
        query: as for `attend_to_trees`.
        sizes: as for `attend_to_trees`.

    Raises:
        ValueError: the workspace is too small.
    """
    nodes, heads, width = query.shape
    size = workspace_size(sizes, heads, width)
    if workspace is None:
        workspace = torch.empty(size, dtype=torch.float32, device=query.device)
    if workspace.dtype != torch.float32 or workspace.numel() < size or not workspace.is_contiguous():
        raise ValueError(f"the workspace holds {workspace.numel()} numbers of {workspace.dtype}, not {size} of float32")
    slots = 2 if nodes >= SERIAL_NODES else sizes.splits  # states that are kept of each node and head
    numbers = slots * nodes * heads
    sums, tops, totals = workspace.view(-1)[:size].split((numbers * width, numbers, numbers))
    return sums, tops, totals


def attend_to_trees(
    query: Tensor,
    rows: tuple[Tensor, Tensor],
    trees: PackedTrees[Tensor],
    sizes: TreeSizes,
    scale: float,
    span: Span = EVERYTHING,
    lossy_window: LossyWindow | None = None,
    *,
    workspace: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Attend from each node to the rows of its ancestors and to its own, in two launches.

    The result of a node has the same bits in every pass, whatever the sizes are and wherever its text's rows are. Rows
    that a node does not see may hold anything, and so may the workspace.

    Args:
        query: `[nodes, heads, width]`, bfloat16, float16 or float32.
        rows: keys and values of a layer, each `[key heads, rows, width]` of the query's dtype.
        trees: the arrays of the pass.
        sizes: the sizes to which they are padded.
        scale: factor of the scores, greater than 0.
        span: how far back the layer attends.
        lossy_window: the window of all texts of the pass.
        workspace: float32, at least `workspace_size` numbers; allocated if None.
        out: `[nodes, heads * width]`, contiguous, for the result; allocated if None.

    Returns:
        `[nodes, heads * width]` of the query's dtype; 0 for padding nodes.

    Raises:
        ValueError: shapes, dtypes or strides do not fit, the scale is not positive, or the workspace is too small.
    """
    keys, values = rows
    _check_rows(query, keys, values, sizes)
    if scale <= 0:
        raise ValueError(f"scores have the factor {scale}, which is not positive")
    out = _result(query, out)
    if not len(query):
        return out
    groups = query.shape[1] // len(keys)
    tile_nodes = _tile_nodes(groups)
    splits = 1 if len(query) >= SERIAL_NODES else sizes.splits
    constants = _constants(query, groups, span, lossy_window)
    strides = *query.stride()[:2], *keys.stride()[:2], *values.stride()[:2], len(query)
    states = _states(workspace, query, sizes)
    nodes = NodeColumns(*trees.nodes)
    _common_kernel[(sizes.tiles * (TILE_NODES // tile_nodes), len(keys), splits)](
        query,
        keys,
        values,
        *states,
        nodes.places,
        nodes.first_rows,
        nodes.dropped,
        nodes.commons,
        *trees.tiles,
        scale * LOG2_E,
        *strides,
        NODES=tile_nodes,
        NODES_OF_TILE=TILE_NODES,
        QUERIES=max(triton.next_power_of_2(tile_nodes * groups), LEAST_QUERIES),
        **constants,
    )
    _path_kernel[(len(query), len(keys))](
        query,
        keys,
        values,
        *states,
        nodes.places,
        nodes.first_rows,
        nodes.dropped,
        nodes.commons,
        nodes.shared,
        nodes.own_starts,
        trees.own_rows,
        out,
        scale * LOG2_E,
        *strides,
        QUERIES=max(triton.next_power_of_2(groups), LEAST_QUERIES),
        **constants,
    )
    return out


def _tile_nodes(groups: int) -> int:
    """The nodes of a tile that one program takes: a power of two, and at most `TILE_QUERIES` queries if possible."""
    return min(TILE_NODES, max(1 << (TILE_QUERIES // groups).bit_length() - 1, 1)) if groups <= TILE_QUERIES else 1


@triton.jit(do_not_specialize=["nodes"], do_not_specialize_on_alignment=ARRAYS)
def _common_kernel(
    query,
    keys,
    values,
    sums,
    tops,
    totals,
    places,
    first_rows,
    dropped,
    commons,
    tile_firsts,
    tile_counts,
    exponent,
    query_node_stride,
    query_head_stride,
    keys_head_stride,
    keys_row_stride,
    values_head_stride,
    values_row_stride,
    nodes,
    NODES: tl.constexpr,
    NODES_OF_TILE: tl.constexpr,
    QUERIES: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT_PLACES: tl.constexpr,
    SERIAL: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    LOSSY: tl.constexpr,
    SINKS: tl.constexpr,
):
    """The states of a tile's queries, or of part of them, for the blocks of a split that its nodes have in common.

    With `SERIAL`, a program stores the joined states of all splits that are common to their end in slot 0, and the
    state of the split after them in slot 1. Without, slots are splits.
    """
    PROGRAMS: tl.constexpr = NODES_OF_TILE // NODES
    LIMITED: tl.constexpr = (WINDOW > 0) | (CHUNK > 0) | (LOSSY > 0)
    tile = tl.program_id(0) // PROGRAMS
    skipped = tl.program_id(0) % PROGRAMS * NODES
    count = tl.load(tile_counts + tile) - skipped
    if count > 0:
        first = tl.load(tile_firsts + tile) + skipped
        end = tl.load(commons + first) // BLOCK * BLOCK
        head = tl.program_id(1).to(tl.int64)
        order = tl.arange(0, QUERIES)
        node = first + order // GROUPS
        query_head = head * GROUPS + order % GROUPS
        is_query = (order < NODES * GROUPS) & (order // GROUPS < count)
        begins = tl.zeros([QUERIES], tl.int32)
        begin = 0
        if LIMITED:
            node_places = tl.load(places + node, mask=is_query, other=0)
            begins = _whole_from(node_places, BLOCK, WINDOW, CHUNK, LOSSY, SINKS)
            begin = tl.min(tl.where(is_query, begins, 2147483647), 0)
        if SERIAL:
            split_begin = tl.maximum(end // SPLIT_PLACES * SPLIT_PLACES, begin)
            split_end = end
            slot = 1
        else:
            slot = tl.program_id(2)
            split_begin = tl.maximum(slot * SPLIT_PLACES, begin)
            split_end = tl.minimum((slot + 1) * SPLIT_PLACES, end)
        if begin < end:
            columns = tl.arange(0, COLUMNS)
            query_tile = tl.load(
                query
                + node[:, None].to(tl.int64) * query_node_stride
                + query_head[:, None] * query_head_stride
                + columns[None, :],
                mask=is_query[:, None] & (columns < WIDTH)[None, :],
                other=0.0,
            )
            first_row = (tl.load(first_rows + first) - tl.load(dropped + first)).to(tl.int64)
            text_keys = keys + head * keys_head_stride + first_row * keys_row_stride
            text_values = values + head * values_head_stride + first_row * values_row_stride
            numbers = nodes * HEADS
            query_numbers = node * HEADS + query_head
            if SERIAL:
                all_top, all_total, all_sums = _no_state(QUERIES, COLUMNS)
                for split in range(begin // SPLIT_PLACES, end // SPLIT_PLACES):
                    top, total, state_sums = _no_state(QUERIES, COLUMNS)
                    for at in range(tl.maximum(split * SPLIT_PLACES, begin), (split + 1) * SPLIT_PLACES, BLOCK):
                        top, total, state_sums = _add_common(
                            top, total, state_sums, query_tile, text_keys, text_values, at, begins, exponent,
                            keys_row_stride, values_row_stride, WIDTH, COLUMNS, BLOCK, LIMITED,
                        )  # fmt: skip
                    all_top, all_total, all_sums = _joined(
                        all_top, all_total, all_sums, top, total, state_sums, exponent
                    )
                _store_state(all_top, all_total, all_sums, sums, tops, totals, query_numbers, is_query, WIDTH, COLUMNS)
            if split_begin < split_end:
                top, total, state_sums = _no_state(QUERIES, COLUMNS)
                for at in range(split_begin, split_end, BLOCK):
                    top, total, state_sums = _add_common(
                        top, total, state_sums, query_tile, text_keys, text_values, at, begins, exponent,
                        keys_row_stride, values_row_stride, WIDTH, COLUMNS, BLOCK, LIMITED,
                    )  # fmt: skip
                _store_state(
                    top, total, state_sums, sums, tops, totals, slot * numbers + query_numbers, is_query, WIDTH, COLUMNS
                )


@triton.jit(do_not_specialize=["nodes"], do_not_specialize_on_alignment=ARRAYS)
def _path_kernel(
    query,
    keys,
    values,
    sums,
    tops,
    totals,
    places,
    first_rows,
    dropped,
    commons,
    shared,
    own_starts,
    own_rows,
    out,
    exponent,
    query_node_stride,
    query_head_stride,
    keys_head_stride,
    keys_row_stride,
    values_head_stride,
    values_row_stride,
    nodes,
    QUERIES: tl.constexpr,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT_PLACES: tl.constexpr,
    SERIAL: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    LOSSY: tl.constexpr,
    SINKS: tl.constexpr,
):
    """The result of the queries of one node and one key head: joins the states of its splits, and computes the rest."""
    LIMITED: tl.constexpr = (WINDOW > 0) | (CHUNK > 0) | (LOSSY > 0)
    node = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    place = tl.load(places + node)
    order = tl.arange(0, QUERIES)
    columns = tl.arange(0, COLUMNS)
    query_head = head * GROUPS + order
    is_query = order < GROUPS
    is_number = is_query[:, None] & (columns < WIDTH)[None, :]
    query_numbers = node * HEADS + query_head
    results = out + query_numbers[:, None] * WIDTH + columns[None, :]
    if place < 0:
        tl.store(results, tl.zeros([QUERIES, COLUMNS], out.dtype.element_ty), mask=is_number)
    else:
        query_tile = tl.load(
            query + node * query_node_stride + query_head[:, None] * query_head_stride + columns[None, :],
            mask=is_number,
            other=0.0,
        )
        # the rows of the text by place
        head_keys = keys + head * keys_head_stride
        head_values = values + head * values_head_stride
        first_row = tl.load(first_rows + node)
        dropped_rows = tl.load(dropped + node)
        shared_end = tl.load(shared + node)
        path = own_rows + tl.load(own_starts + node)

        begin = 0
        if LIMITED:
            begin = _whole_from(place, BLOCK, WINDOW, CHUNK, LOSSY, SINKS)
        common_end = tl.load(commons + node) // BLOCK * BLOCK
        begin_split = begin // SPLIT_PLACES
        common_split = common_end // SPLIT_PLACES
        numbers = nodes * HEADS

        # the splits that are common to their end
        all_top, all_total, all_sums = _no_state(QUERIES, COLUMNS)
        if SERIAL:
            is_used = order < tl.where(begin_split < common_split, GROUPS, 0)
            all_top, all_total, all_sums = _load_state(sums, tops, totals, query_numbers, is_used, WIDTH, COLUMNS)
        else:
            for split in tl.range(begin_split, common_split, loop_unroll_factor=4):
                top, total, state_sums = _load_state(
                    sums, tops, totals, split * numbers + query_numbers, is_query, WIDTH, COLUMNS
                )
                all_top, all_total, all_sums = _joined(all_top, all_total, all_sums, top, total, state_sums, exponent)

        # those that are not: the first of them may go on from a state
        for split in range(tl.maximum(begin_split, common_split), place // SPLIT_PLACES + 1):
            block_begin = tl.maximum(split * SPLIT_PLACES, begin)
            slot = 1 if SERIAL else split
            is_used = order < tl.where(block_begin < common_end, GROUPS, 0)
            top, total, state_sums = _load_state(
                sums, tops, totals, slot * numbers + query_numbers, is_used, WIDTH, COLUMNS
            )
            block_end = tl.minimum((split + 1) * SPLIT_PLACES, place + 1)
            for at in range(tl.maximum(block_begin, common_end), block_end, BLOCK):
                top, total, state_sums = _add_path(
                    top, total, state_sums, query_tile, head_keys, head_values, at, 0, place + 1, first_row,
                    dropped_rows, shared_end, path, exponent, keys_row_stride, values_row_stride, WIDTH, COLUMNS,
                    BLOCK, SINKS,
                )  # fmt: skip
            all_top, all_total, all_sums = _joined(all_top, all_total, all_sums, top, total, state_sums, exponent)

        # the block of the first place that the node sees behind a window's end, and the sinks
        if LIMITED:
            least, sinks_begin, sinks_end = _limits(place, WINDOW, CHUNK, LOSSY, SINKS)
            if least > 0:
                top, total, state_sums = _no_state(QUERIES, COLUMNS)
                top, total, state_sums = _add_path(
                    top, total, state_sums, query_tile, head_keys, head_values, least // BLOCK * BLOCK, least,
                    place + 1, first_row, dropped_rows, shared_end, path, exponent, keys_row_stride,
                    values_row_stride, WIDTH, COLUMNS, BLOCK, SINKS,
                )  # fmt: skip
                all_top, all_total, all_sums = _joined(all_top, all_total, all_sums, top, total, state_sums, exponent)
            if SINKS > 0:
                for at in range(sinks_begin // BLOCK * BLOCK, sinks_end, BLOCK):
                    top, total, state_sums = _no_state(QUERIES, COLUMNS)
                    top, total, state_sums = _add_path(
                        top, total, state_sums, query_tile, head_keys, head_values, at, sinks_begin, sinks_end,
                        first_row, dropped_rows, shared_end, path, exponent, keys_row_stride, values_row_stride,
                        WIDTH, COLUMNS, BLOCK, SINKS,
                    )  # fmt: skip
                    all_top, all_total, all_sums = _joined(
                        all_top, all_total, all_sums, top, total, state_sums, exponent
                    )
        tl.store(results, (all_sums / tl.max(all_total, 1)[:, None]).to(out.dtype.element_ty), mask=is_number)


@triton.jit
def _limits(place, WINDOW: tl.constexpr, CHUNK: tl.constexpr, LOSSY: tl.constexpr, SINKS: tl.constexpr):
    """The first place that a node sees, or sees behind the sinks, and where the sinks before that begin and end.

    Without sinks they end at 0; if the node sees all rows, its first place is 0.
    """
    least = place * 0
    if WINDOW > 0:
        least = tl.maximum(place - WINDOW + 1, 0)
    if CHUNK > 0:
        least = place // CHUNK * CHUNK
    sinks_begin = least
    sinks_end = place * 0
    if LOSSY > 0:
        lossy_least = place - LOSSY + 1
        hides = lossy_least > tl.maximum(least, SINKS)
        sinks_end = tl.where(hides & (least < SINKS), SINKS, 0)
        least = tl.where(hides, lossy_least, least)
    return least, sinks_begin, sinks_end


@triton.jit
def _whole_from(
    place,
    BLOCK: tl.constexpr,
    WINDOW: tl.constexpr,
    CHUNK: tl.constexpr,
    LOSSY: tl.constexpr,
    SINKS: tl.constexpr,
):
    """The place from which on a node sees all rows before it: 0, or the block after that of the first one it sees."""
    least, _, _ = _limits(place, WINDOW, CHUNK, LOSSY, SINKS)
    return tl.where(least > 0, (least // BLOCK + 1) * BLOCK, 0)


@triton.jit
def _no_state(QUERIES: tl.constexpr, COLUMNS: tl.constexpr):
    """The state of queries that have seen nothing.

    A state is the largest score, the sum of the weights 2^(exponent * (score - the largest)), and the sum of the values
    by these weights. The sums of weights are a tile of equal columns, since a product of matrices computes them.
    """
    return (
        tl.full([QUERIES], float("-inf"), tl.float32),
        tl.zeros([QUERIES, 16], tl.float32),
        tl.zeros([QUERIES, COLUMNS], tl.float32),
    )


@triton.jit
def _add_block(top, total, sums, query, keys, values, seen, exponent):
    """The state after another block, of which the places `seen` count; each query sees one of them at least."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    scores = tl.where(seen[None, :], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    weights = tl.exp2(tl.fma(scores, exponent, -(new_top * exponent)[:, None])).to(values.dtype)
    shrink = tl.exp2((top - new_top) * exponent)[:, None]
    ones = tl.full([keys.shape[0], 16], 1.0, tl.float32).to(values.dtype)
    new_total = tl.dot(weights, ones, total * shrink, input_precision="ieee")
    new_sums = tl.dot(weights, values, sums * shrink, input_precision="ieee")
    return new_top, new_total, new_sums


@triton.jit
def _joined(top, total, sums, other_top, other_total, other_sums, exponent):
    """The state of queries that have seen what two states have seen; either may have seen nothing."""
    new_top = tl.maximum(top, other_top)
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
    shrink = tl.exp2((top - finite_top) * exponent)[:, None]
    other_shrink = tl.exp2((other_top - finite_top) * exponent)[:, None]
    new_total = tl.fma(other_total, other_shrink, total * shrink)
    new_sums = tl.fma(other_sums, other_shrink, sums * shrink)
    return new_top, new_total, new_sums


@triton.jit
def _add_common(
    top,
    total,
    sums,
    query,
    text_keys,
    text_values,
    at,
    begins,
    exponent,
    keys_row_stride,
    values_row_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    LIMITED: tl.constexpr,
):
    """The state after the block of the places from `at` on, at rows that follow each other and that all queries see.

    Queries that see all rows from a later place on only (`begins`) keep their state.
    """
    block_places = at + tl.arange(0, BLOCK)
    columns = tl.arange(0, COLUMNS)
    is_column = (columns < WIDTH)[None, :]
    block_keys = tl.load(
        text_keys + block_places[:, None].to(tl.int64) * keys_row_stride + columns[None, :], mask=is_column, other=0.0
    )
    block_values = tl.load(
        text_values + block_places[:, None].to(tl.int64) * values_row_stride + columns[None, :],
        mask=is_column,
        other=0.0,
    )
    new_top, new_total, new_sums = _add_block(
        top, total, sums, query, block_keys, block_values, block_places >= 0, exponent
    )
    if LIMITED:
        sees = begins <= at
        new_top = tl.where(sees, new_top, top)
        new_total = tl.where(sees[:, None], new_total, total)
        new_sums = tl.where(sees[:, None], new_sums, sums)
    return new_top, new_total, new_sums


@triton.jit
def _add_path(
    top,
    total,
    sums,
    query,
    head_keys,
    head_values,
    at,
    least,
    end,
    first_row,
    dropped_rows,
    shared_end,
    path,
    exponent,
    keys_row_stride,
    values_row_stride,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SINKS: tl.constexpr,
):
    """The state after the block of the places from `at` on, of which a node sees those from `least` to before `end`."""
    block_places = at + tl.arange(0, BLOCK)
    seen = (block_places >= least) & (block_places < end)
    is_own = block_places >= shared_end
    text_rows = first_row + block_places - tl.where(block_places >= SINKS, dropped_rows, 0)
    path_rows = tl.load(path + block_places - shared_end, mask=seen & is_own, other=0)
    block_rows = tl.where(is_own, path_rows, text_rows)[:, None].to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    is_number = seen[:, None] & (columns < WIDTH)[None, :]
    block_keys = tl.load(head_keys + block_rows * keys_row_stride + columns[None, :], mask=is_number, other=0.0)
    block_values = tl.load(head_values + block_rows * values_row_stride + columns[None, :], mask=is_number, other=0.0)
    return _add_block(top, total, sums, query, block_keys, block_values, seen, exponent)


@triton.jit
def _load_state(sums, tops, totals, query_numbers, is_used, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """The stored states of queries, and none for queries for which there is none."""
    columns = tl.arange(0, COLUMNS)
    top = tl.load(tops + query_numbers, mask=is_used, other=float("-inf"))
    total = tl.load(totals + query_numbers, mask=is_used, other=0.0)
    state_sums = tl.load(
        sums + query_numbers[:, None] * WIDTH + columns[None, :],
        mask=is_used[:, None] & (columns < WIDTH)[None, :],
        other=0.0,
    )
    return top, tl.broadcast_to(total[:, None], [total.shape[0], 16]), state_sums


@triton.jit
def _store_state(
    top, total, state_sums, sums, tops, totals, query_numbers, is_query, WIDTH: tl.constexpr, COLUMNS: tl.constexpr
):
    columns = tl.arange(0, COLUMNS)
    tl.store(tops + query_numbers, top, mask=is_query)
    tl.store(totals + query_numbers, tl.max(total, 1), mask=is_query)
    tl.store(
        sums + query_numbers[:, None] * WIDTH + columns[None, :],
        state_sums,
        mask=is_query[:, None] & (columns < WIDTH)[None, :],
    )
