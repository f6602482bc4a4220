"""The inputs of a pass over the trees of one text or many, for attention in Triton; recorded or not."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.models.cache.buffer_pool import RangePool
from drafttree.models.cache.kv_cache import CacheLayout
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.recorded.packed_inputs import PackedTensors, RangeInputs
from drafttree.models.segment import Segment
from drafttree.models.triton.attention import (
    SPLIT,
    TILE_NODES,
    ColumnT,
    PackedTrees,
    TextNodes,
    TreeSizes,
    TritonAttention,
    workspace_size,
)
from drafttree.models.windows import LossyWindow, Span

NODES = (1, 8, 16, 32, 64, 128, 256)
"""Counts of nodes of recorded passes; larger passes, which read prompts, are not recorded."""
TEXTS = (1, 4, 16, 64)
"""Counts of texts of recorded passes."""
SPLITS = (4, 16, 64, 256, 1024)
"""Counts of splits of recorded passes. Programs of splits that a text does not have end at once."""
OWN_ROWS = 32
"""Rows of a node's own path that a recorded pass has room for, on average; for at least eight nodes."""


class QueryShape(NamedTuple):
    """The shape of a layer's queries.

    Attributes:
        heads: number of query heads.
        width: width of a head.
    """

    heads: int
    width: int


class TreePassSizes(NamedTuple):
    """What decides all shapes and launches of a pass.

    Attributes:
        trees: sizes of the trees.
        window: the lossy window of the KV caches, None for none.
    """

    trees: TreeSizes
    window: LossyWindow | None


class TreePassArrays(NamedTuple, Generic[ColumnT]):
    """The arrays that the host writes for a pass, or their copies on the device.

    Attributes:
        tokens: int64 `[2, nodes]`: token ids and positions.
        nodes: as of `PackedTrees`.
        tiles: as of `PackedTrees`.
        own_rows: as of `PackedTrees`.
    """

    tokens: ColumnT
    nodes: ColumnT
    tiles: ColumnT
    own_rows: ColumnT


class TreeInputs(RangeInputs):
    """Makes the inputs of passes over trees. See `RangeInputs`.

    All KV caches of a pass are of one `RangePool`, or there is only one KV cache. If that is not of `pool`, the pass is
    not recorded.

    Args:
        pool: pool that the KV caches are taken from.
        layout: layout of the KV caches.
        query_shapes: the different shapes of the layers' queries.
    """

    takes_windows = True

    def __init__(self, pool: RangePool, layout: CacheLayout, query_shapes: Iterable[QueryShape]) -> None:
        super().__init__(pool, layout)
        self._query_shapes = [*query_shapes]

    def sizes_of(self, segments: Sequence[Segment]) -> TreePassSizes:
        return TreePassSizes(TreeSizes.of([*map(TextNodes.of, segments)]), _window_of(segments))

    def padded_sizes(self, segments: Sequence[Segment]) -> TreePassSizes | None:
        """See `RangeInputs`. Sizes are bounded by what is known without a look at the trees, which takes time."""
        node_count = sum(segment.nodes for segment in segments)
        split_count = max(map(_most_splits, segments))
        if node_count > NODES[-1] or len(segments) > TEXTS[-1] or split_count > SPLITS[-1]:
            return None
        nodes = NODES[bisect_left(NODES, node_count)]
        texts = TEXTS[bisect_left(TEXTS, len(segments))]
        own_rows = OWN_ROWS * max(nodes, TILE_NODES)
        if sum(int(np.count_nonzero(segment.visible)) for segment in segments) > own_rows:
            return None
        tiles = (nodes + (TILE_NODES - 1) * texts) // TILE_NODES
        splits = SPLITS[bisect_left(SPLITS, split_count)]
        return TreePassSizes(TreeSizes(nodes, tiles, own_rows, splits), _window_of(segments))

    def arrays_of(self, segments: Sequence[Segment], sizes: TreePassSizes) -> TreePassArrays[Array]:
        tokens = np.zeros((2, sizes.trees.nodes), dtype=np.int64)
        node = 0
        for segment in segments:
            node_slice = slice(node, node := node + segment.nodes)
            tokens[0, node_slice] = segment.tokens
            tokens[1, node_slice] = segment.positions
        trees = PackedTrees.of([*map(TextNodes.of, segments)], sizes.trees)
        return TreePassArrays(tokens, *trees)

    def inputs(self, memory: PackedTensors, sizes: TreePassSizes, rows: list[tuple[Tensor, Tensor]]) -> PassInputs:
        arrays: TreePassArrays[Tensor] = memory.arrays
        trees = PackedTrees(arrays.nodes, arrays.tiles, arrays.own_rows)
        numbers = max(workspace_size(sizes.trees, *query_shape) for query_shape in self._query_shapes)
        workspace = torch.empty(numbers, dtype=torch.float32, device=arrays.nodes.device)

        def attention(span: Span, _: int) -> TritonAttention:
            return TritonAttention(trees, sizes.trees, span, sizes.window, workspace)

        return PassInputs(arrays.tokens[:1], arrays.tokens[1:], memory.hidden, rows, attention)


def _window_of(segments: Sequence[Segment]) -> LossyWindow | None:
    """The lossy window of all texts of a pass, which are of one backend."""
    windowed = segments[0].cache.windowed
    return windowed.window if windowed else None


def _most_splits(segment: Segment) -> int:
    """A number of splits that a text does not exceed, its drafted rows included."""
    return -(-(segment.cache.read_tokens + segment.visible.shape[1]) // SPLIT)
