"""The inputs of a pass over several requests, whose KV caches are ranges of one allocation."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.models.attention.varlen_attention import Prefixes, VarlenAttention, attend_densely
from drafttree.models.cache.buffer_pool import PADDING_ROW, PooledCache, RangePool, allocation_of
from drafttree.models.cache.kv_cache import CacheLayout, layer_rows
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.host_copies import as_placed, byte_places, packed_bits, send_to, unpacked_bits
from drafttree.models.segment import Segment
from drafttree.models.windows import Span

BUCKETS = (8, 16, 32, 64, 128, 256, 512)
"""Counts of nodes and of drafted rows of recorded passes; larger passes, which read prompts, are not recorded."""
MAX_REQUESTS = 64
"""Most requests of a recorded pass."""

ColumnT = TypeVar("ColumnT", Array, Tensor)


class PackedAttention(NamedTuple):
    """Attention to the rows of several requests. See `PassAttention`.

    One call attends to the committed rows of all requests, and another to their trees. The two results are joined by
    their log-sum-exps.

    Attributes:
        attend_to_prefixes: attends to the committed rows.
        new_rows: `[nodes]` indices of the rows where the nodes' keys and values are written.
        tree_rows: `[drafted]` indices of the drafted rows of all requests, the new ones included.
        visible: bool `[nodes * groups, drafted]`: which drafted rows a query attends to.
        prefixes: the committed rows.
        has_prefix: bool `[nodes * groups]`: whether the request of a query has committed rows.
    """

    attend_to_prefixes: VarlenAttention
    new_rows: Tensor
    tree_rows: Tensor
    visible: Tensor
    prefixes: Prefixes
    has_prefix: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`; `rows` are all keys and values `[key heads, rows, width]` of a layer."""
        for stored_rows, new_states in zip(rows, (key, value), strict=True):
            stored_rows.index_copy_(1, self.new_rows, new_states.transpose(0, 1))
        return self.read(query, rows, scale)

    def read(self, query: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`.

        Query heads that share a key head are stacked as queries, so that rows are read once for all of them. Torch's
        kernel could group heads itself. But then it returns the log-sum-exps of single queries in another order.
        """
        grouped_query = query.unflatten(1, (len(rows[0]), -1)).transpose(1, 2)
        stacked_query = grouped_query.flatten(0, 1)
        keys, values = (stored_rows.index_select(1, self.tree_rows) for stored_rows in rows)
        tree_out, tree_lse = attend_densely(stacked_query, keys, values, self.visible, scale)
        prefix_out, prefix_lse = self.attend_to_prefixes(stacked_query, *rows, self.prefixes, scale)
        prefix_share = torch.sigmoid(prefix_lse - tree_lse).masked_fill(~self.has_prefix, 0)
        out = tree_out.lerp(prefix_out.to(tree_out.dtype), prefix_share.t().unsqueeze(-1).to(tree_out.dtype))
        return out.to(query.dtype).view(grouped_query.shape).transpose(1, 2).flatten(1)


class PackedSizes(NamedTuple):
    """The sizes that decide all shapes of a pass.

    Attributes:
        nodes: nodes of all requests.
        drafted: drafted rows of all requests, the nodes' included.
        requests: number of requests.
        max_request_nodes: largest number of nodes of one request.
    """

    nodes: int
    drafted: int
    requests: int
    max_request_nodes: int

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "PackedSizes":
        """The sizes of a pass, without padding."""
        nodes = [segment.nodes for segment in segments]
        drafted = sum(segment.visible.shape[1] for segment in segments)
        return cls(sum(nodes), drafted, len(segments), max(nodes))


class NodeColumns(NamedTuple, Generic[ColumnT]):
    """What a pass reads about each node; the rows of `PassArrays.nodes`.

    Attributes:
        tokens: `[nodes]` token ids.
        positions: `[nodes]`.
        new_rows: `[nodes]` indices of the rows where the nodes' keys and values are written.
    """

    tokens: ColumnT
    positions: ColumnT
    new_rows: ColumnT


class RequestColumns(NamedTuple, Generic[ColumnT]):
    """What a pass reads about each request; the rows of `PassArrays.requests`.

    Attributes:
        first_nodes: `[requests + 1]` index of each request's first node, then the number of all nodes.
        prefix_lengths: `[requests + 1]` number of each request's committed rows, at least 1; the last is not read.
        prefix_starts: `[requests + 1]` index of each request's first committed row; the last is not read.
    """

    first_nodes: ColumnT
    prefix_lengths: ColumnT
    prefix_starts: ColumnT


class PassArrays(NamedTuple, Generic[ColumnT]):
    """The arrays that the host writes for a pass, or their copies on the device. Padding nodes belong to no request.

    Columns of one shape share an array, since the copy of each array takes the host time.

    Attributes:
        nodes: int64 `[3, nodes]`, see `NodeColumns`.
        requests: int32 `[3, requests + 1]`, see `RequestColumns`.
        tree_rows: int64 `[drafted]` indices of the drafted rows.
        has_prefix: bool `[nodes]` whether the request of a node has committed rows.
        visible_bits: uint8 `[nodes, drafted / 8]`, rounded up: which drafted rows a node attends to.
    """

    nodes: ColumnT
    requests: ColumnT
    tree_rows: ColumnT
    has_prefix: ColumnT
    visible_bits: ColumnT

    @classmethod
    def of(cls, segments: Sequence[Segment], sizes: PackedSizes) -> "PassArrays[Array]":
        """The arrays of a pass whose KV caches are of a `RangePool`, padded to these sizes."""
        arrays = PassArrays(
            nodes=np.zeros((3, sizes.nodes), dtype=np.int64),
            requests=np.zeros((3, sizes.requests + 1), dtype=np.int32),
            tree_rows=np.zeros(sizes.drafted, dtype=np.int64),
            has_prefix=np.zeros(sizes.nodes, dtype=bool),
            visible_bits=np.zeros((sizes.nodes, -(-sizes.drafted // 8)), dtype=np.uint8),
        )
        nodes = NodeColumns(*arrays.nodes)
        requests = RequestColumns(*arrays.requests)
        nodes.new_rows.fill(PADDING_ROW)
        arrays.tree_rows.fill(PADDING_ROW)
        requests.prefix_lengths.fill(1)
        visible = np.zeros((sizes.nodes, sizes.drafted), dtype=bool)
        node = row = 0
        for index, segment in enumerate(segments):
            length = segment.cache.length
            request_rows = _tree_rows(segment)
            node_slice = slice(node, node := node + segment.nodes)
            row_slice = slice(row, row := row + len(request_rows))
            nodes.tokens[node_slice] = segment.tokens
            nodes.positions[node_slice] = segment.positions
            nodes.new_rows[node_slice] = request_rows[-segment.nodes :]
            requests.first_nodes[index] = node_slice.start
            requests.prefix_lengths[index] = max(length, 1)
            requests.prefix_starts[index] = request_rows[0] - length
            arrays.tree_rows[row_slice] = request_rows
            arrays.has_prefix[node_slice] = length > 0
            visible[node_slice, row_slice] = segment.visible
        requests.first_nodes[len(segments) :] = node
        arrays.visible_bits[:] = packed_bits(visible)
        return arrays


class PackedTensors(NamedTuple):
    """What a pass reads on the device.

    Attributes:
        memory: uint8, the bytes of all arrays.
        arrays: views of these bytes, in a named tuple.
        hidden: `[1, nodes, hidden]` states that a draft head reads; empty for a model.
    """

    memory: Tensor
    arrays: Any
    hidden: Tensor

    @classmethod
    def empty(cls, arrays: Any, hidden_states: Tensor) -> "PackedTensors":
        """Uninitialised memory for arrays of these shapes and for hidden states, on the device of `hidden_states`."""
        memory = torch.empty(byte_places(arrays)[-1], dtype=torch.uint8, device=hidden_states.device)
        nodes = arrays.nodes.shape[1] if hidden_states.numel() else 0
        tensors = type(arrays)(*as_placed(memory, arrays))
        return cls(memory, tensors, hidden_states.new_zeros(1, nodes, hidden_states.shape[-1]))


class RangeInputs:
    """Makes the inputs of passes whose KV caches are ranges of one allocation, from arrays that the host writes.

    See `drafttree.models.recorded.recorded_passes.InputBuilder`. A subclass says which arrays.

    Args:
        pool: pool that the KV caches are taken from.
        layout: layout of the KV caches.

    Attributes:
        pool: as given.
    """

    padding = 0
    takes_windows = False

    def __init__(self, pool: RangePool, layout: CacheLayout) -> None:
        self.pool = pool
        self._layout = layout

    def sizes_of(self, segments: Sequence[Segment]) -> Any:
        """The sizes of a pass, without padding."""
        raise NotImplementedError

    def padded_sizes(self, segments: Sequence[Segment]) -> Any:
        """The sizes of a pass that is recorded, None if it is too large."""
        raise NotImplementedError

    def arrays_of(self, segments: Sequence[Segment], sizes: Any) -> Any:
        """A named tuple of the arrays that a pass of these sizes reads; the columns of `nodes` are nodes."""
        raise NotImplementedError

    def inputs(self, memory: PackedTensors, sizes: Any, rows: list[tuple[Tensor, Tensor]]) -> PassInputs:
        raise NotImplementedError

    def make_room(self, segments: Sequence[Segment], reference_tensor: Tensor) -> Any:
        for segment in segments:  # making room for one segment may move the rows of all
            segment.cache.reserve(reference_tensor, segment.nodes)
        return self.padded_sizes(segments)

    def recorded(self, segments: Sequence[Segment]) -> dict[Any, Any]:
        return self.pool.passes

    def rows(self, segments: Sequence[Segment]) -> list[tuple[Tensor, Tensor]]:
        """Per layer all keys and values `[key heads, rows, width]` of the allocation."""
        buffers = allocation_of(segments[0].cache).buffers
        return [(keys[0], values[0]) for keys, values in layer_rows(self._layout, [*buffers])]

    def store(
        self, segments: Sequence[Segment], hidden_states: Tensor, sizes: Any, memory: PackedTensors | None = None
    ) -> PackedTensors:
        arrays = self.arrays_of(segments, sizes)
        memory = memory or PackedTensors.empty(arrays, hidden_states)
        send_to(arrays, memory.memory)
        if hidden_states.numel():
            memory.hidden[:, : hidden_states.shape[1]] = hidden_states
            memory.hidden[:, hidden_states.shape[1] :].zero_()  # an earlier pass may have left NaN
        return memory

    def unrecorded(self, segments: Sequence[Segment], hidden_states: Tensor) -> PassInputs:
        sizes = self.sizes_of(segments)
        return self.inputs(self.store(segments, hidden_states, sizes), sizes, self.rows(segments))


class PackedInputs(RangeInputs):
    """Makes the inputs of passes over several requests, with attention by torch. See `RangeInputs`.

    Args:
        pool: pool that the KV caches are taken from.
        layout: layout of the KV caches.
        groups: query heads that share a key head.
        varlen: attends to the committed rows.
    """

    def __init__(self, pool: RangePool, layout: CacheLayout, groups: int, varlen: VarlenAttention) -> None:
        super().__init__(pool, layout)
        self._groups = groups
        self._varlen = varlen

    def sizes_of(self, segments: Sequence[Segment]) -> PackedSizes:
        return PackedSizes.of(segments)

    def padded_sizes(self, segments: Sequence[Segment]) -> PackedSizes | None:
        sizes = PackedSizes.of(segments)
        if max(sizes.nodes, sizes.drafted) > BUCKETS[-1] or sizes.requests > MAX_REQUESTS:
            return None
        nodes = _bucket(sizes.nodes)
        return PackedSizes(nodes, _bucket(sizes.drafted), min(nodes, MAX_REQUESTS), nodes)

    def arrays_of(self, segments: Sequence[Segment], sizes: PackedSizes) -> PassArrays[Array]:
        return PassArrays.of(segments, sizes)

    def inputs(self, memory: PackedTensors, sizes: PackedSizes, rows: list[tuple[Tensor, Tensor]]) -> PassInputs:
        groups = self._groups
        arrays: PassArrays[Tensor] = memory.arrays
        nodes = NodeColumns(*arrays.nodes)
        requests = RequestColumns(*arrays.requests)

        def attention(_: Span, __: int) -> PackedAttention:
            prefixes = Prefixes(
                query_starts=requests.first_nodes * groups,
                row_counts=requests.prefix_lengths[:-1],
                row_starts=requests.prefix_starts,
                max_queries=sizes.max_request_nodes * groups,
            )
            visible = unpacked_bits(arrays.visible_bits, sizes.drafted).repeat_interleave(groups, 0)
            has_prefix = arrays.has_prefix.repeat_interleave(groups, 0)
            return PackedAttention(self._varlen, nodes.new_rows, arrays.tree_rows, visible, prefixes, has_prefix)

        return PassInputs(nodes.tokens[None], nodes.positions[None], memory.hidden, rows, attention)


def _bucket(count: int) -> int:
    """The smallest bucket of at least this count."""
    return BUCKETS[bisect_left(BUCKETS, count)]


def _tree_rows(segment: Segment) -> Array:
    """Indices in the allocation of a request's drafted rows, those of its new nodes included."""
    cache = segment.cache
    assert isinstance(cache, PooledCache)
    start = cache.pooled.start + cache.length
    return np.arange(start, start + cache.drafted + segment.nodes)
