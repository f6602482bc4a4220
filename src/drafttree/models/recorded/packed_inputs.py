"""The inputs of a pass whose requests have their rows in one allocation, of any sizes or rounded up to some."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drafttree.models.attention.varlen_attention import Prefixes, VarlenAttention, attend_densely
from drafttree.models.cache.buffer_pool import PADDING_ROW, PooledCache, RangePool
from drafttree.models.cache.kv_cache import CacheLayout, layer_rows
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.segment import Segment
from drafttree.models.windows import Span

BUCKETS = (8, 16, 32, 64, 128, 256, 512)
"""Nodes of a recorded pass, and its drafted rows; larger ones, which read prompts, are not recorded."""
MAX_REQUESTS = 64
"""Requests of a recorded pass."""


class PackedAttention(NamedTuple):
    """Attention to the rows of several requests. See `PassAttention`.

    The committed rows of all requests are attended to in one call and the trees in another, whose results are joined by
    their log-sum-exps.

    Attributes:
        attend_to_prefixes: attends to the committed rows.
        new_rows: `[nodes]` where the nodes' rows are to be written.
        tree_rows: `[drafted]` the drafted rows of all requests, the new ones included.
        visible: bool `[nodes * groups, drafted]`: which of them a query attends to.
        prefixes: the committed rows.
        has_prefix: bool `[nodes * groups]`: whether the request of a query has any.
    """

    attend_to_prefixes: VarlenAttention
    new_rows: Tensor
    tree_rows: Tensor
    visible: Tensor
    prefixes: Prefixes
    has_prefix: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`; `rows` are all keys and values `[key heads, rows, width]` of a layer."""
        for stored, new in zip(rows, (key, value), strict=True):
            stored.index_copy_(1, self.new_rows, new.transpose(0, 1))
        return self.read(query, rows, scale)

    def read(self, query: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`.

        Query heads that share a key head are stacked as queries: the rows are read once for all of them, and torch's
        kernel is not asked for groups, for single queries of which it orders the log-sum-exps in another way.
        """
        grouped = query.unflatten(1, (len(rows[0]), -1)).transpose(1, 2)
        stacked = grouped.flatten(0, 1)
        keys, values = (stored.index_select(1, self.tree_rows) for stored in rows)
        tree, tree_size = attend_densely(stacked, keys, values, self.visible, scale)
        prefix, prefix_size = self.attend_to_prefixes(stacked, *rows, self.prefixes, scale)
        share = torch.sigmoid(prefix_size - tree_size).masked_fill(~self.has_prefix, 0)
        out = tree.lerp(prefix.to(tree.dtype), share.t().unsqueeze(-1).to(tree.dtype))
        return out.to(query.dtype).view(grouped.shape).transpose(1, 2).flatten(1)


class PackedSizes(NamedTuple):
    """The sizes of a pass: all its shapes.

    Attributes:
        nodes: nodes of all requests.
        drafted: drafted rows of all requests, the nodes' included.
        requests: number of requests.
        most_nodes: largest number of nodes of one request.
    """

    nodes: int
    drafted: int
    requests: int
    most_nodes: int

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "PackedSizes":
        """The sizes of a pass without padding."""
        nodes = [segment.nodes for segment in segments]
        drafted = sum(segment.visible.shape[2] for segment in segments)
        return cls(sum(nodes), drafted, len(segments), max(nodes))


class PackedTensors(NamedTuple):
    """The tensors that a pass reads on the device; padding nodes belong to no request.

    Attributes:
        tokens: `[1, nodes]` token ids.
        positions: `[1, nodes]`.
        hidden: `[1, nodes, hidden]`, the states an EAGLE-3 head reads; empty for a model.
        visible: bool `[nodes, drafted]`: which drafted rows a node attends to.
        new_rows: `[nodes]` where its keys and values are written.
        tree_rows: `[drafted]` where the drafted rows are.
        starts: int32 `[requests + 1]`: the first node of every request, and the end of the last one's.
        lengths: int32 `[requests]`: committed rows, at least 1.
        firsts: int32 `[requests + 1]`: the first of them; the last number is not read.
        has_prefix: bool `[nodes]`: whether there are any for a node.
    """

    tokens: Tensor
    positions: Tensor
    hidden: Tensor
    visible: Tensor
    new_rows: Tensor
    tree_rows: Tensor
    starts: Tensor
    lengths: Tensor
    firsts: Tensor
    has_prefix: Tensor

    @classmethod
    def of(cls, segments: Sequence[Segment], hidden: Tensor, sizes: PackedSizes) -> "PackedTensors":
        """The tensors of a pass on the rows that its requests have in a `RangePool`, padded to sizes."""
        nodes, drafted, requests, _ = sizes
        counts = [segment.nodes for segment in segments]
        trees = [_tree_rows(segment) for segment in segments]
        ends = [*accumulate(counts, initial=0)]
        columns = (
            _padded(chain(*(rows[-count:] for rows, count in zip(trees, counts, strict=True))), nodes, PADDING_ROW),
            _padded(chain(*trees), drafted, PADDING_ROW),
            _padded(_repeated(range(requests), counts), nodes, -1),
            _padded(_repeated(range(requests), map(len, trees)), drafted, -2),
            _padded(_repeated([segment.cache.length > 0 for segment in segments], counts), nodes, 0),
            _padded(ends, requests + 1, ends[-1]),
            _padded([segment.cache.length for segment in segments], requests, 0),
            _padded(
                (rows.start - segment.cache.length for rows, segment in zip(trees, segments, strict=True)),
                requests + 1,
                0,
            ),
        )
        # what the host knows goes to the device by one copy, for which it does not wait
        numbers = torch.tensor([*chain(*columns)]).to(hidden.device, non_blocking=True)
        new_rows, tree_rows, node_owners, row_owners, has_prefix, starts, lengths, firsts = numbers.split(
            [*map(len, columns)]
        )
        padding = nodes - ends[-1]
        same = node_owners[:, None] == row_owners
        visible = torch.cat([segment.visible.flatten() for segment in segments])
        return cls(
            F.pad(torch.cat([segment.tokens for segment in segments], 1), (0, padding)),
            F.pad(torch.cat([segment.positions for segment in segments], 1), (0, padding)),
            F.pad(hidden, (0, 0, 0, padding)) if hidden.numel() else hidden,
            same.masked_scatter(same, visible),
            new_rows,
            tree_rows,
            starts.int(),
            lengths.clamp(min=1).int(),
            firsts.int(),
            has_prefix.bool(),
        )


class PackedInputs:
    """Makes the inputs of passes over several requests. See `drafttree.models.recorded.recorded_passes.InputBuilder`.

    Args:
        pool: pool that the KV caches are taken from.
        layout: layout of the KV caches.
        groups: query heads that share a key head.
        varlen: attends to the committed rows.

    Attributes:
        pool: as given.
    """

    def __init__(self, pool: RangePool, layout: CacheLayout, groups: int, varlen: VarlenAttention) -> None:
        self.pool = pool
        self._layout = layout
        self._groups = groups
        self._varlen = varlen

    def make_room(self, segments: Sequence[Segment], like: Tensor) -> PackedSizes | None:
        for segment in segments:
            segment.cache.reserve(like, segment.nodes)
        own = PackedSizes.of(segments)
        nodes, drafted = (next((size for size in BUCKETS if size >= count), None) for count in own[:2])
        if nodes is None or drafted is None or own.requests > MAX_REQUESTS:
            return None
        return PackedSizes(nodes, drafted, min(nodes, MAX_REQUESTS), nodes)

    def recorded(self, segments: Sequence[Segment]) -> dict[Any, Any]:
        return self.pool.passes

    def rows(self, segments: Sequence[Segment]) -> list[tuple[Tensor, Tensor]]:
        """Per layer all keys and values `[key heads, rows, width]` of the allocation."""
        return [(keys[0], values[0]) for keys, values in layer_rows(self._layout, self.pool.buffers)]

    def store(
        self, segments: Sequence[Segment], hidden: Tensor, sizes: PackedSizes, memory: PackedTensors | None = None
    ) -> PackedTensors:
        tensors = PackedTensors.of(segments, hidden, sizes)
        if memory is None:
            return tensors
        for place, given in zip(memory, tensors, strict=True):
            place.copy_(given)
        return memory

    def inputs(self, memory: PackedTensors, sizes: PackedSizes, rows: list[tuple[Tensor, Tensor]]) -> PassInputs:
        groups = self._groups

        def attention(_: Span, __: int) -> PackedAttention:
            prefixes = Prefixes(memory.starts * groups, memory.lengths, memory.firsts, sizes.most_nodes * groups)
            visible, has_prefix = (each.repeat_interleave(groups, 0) for each in (memory.visible, memory.has_prefix))
            return PackedAttention(self._varlen, memory.new_rows, memory.tree_rows, visible, prefixes, has_prefix)

        return PassInputs(memory.tokens, memory.positions, memory.hidden, rows, attention)

    def unrecorded(self, segments: Sequence[Segment], hidden: Tensor) -> PassInputs:
        sizes = PackedSizes.of(segments)
        return self.inputs(self.store(segments, hidden, sizes), sizes, self.rows(segments))


def _tree_rows(segment: Segment) -> range:
    """The places of a request's drafted rows in the allocation, its new nodes included."""
    cache = segment.cache
    assert isinstance(cache, PooledCache)
    first = cache.pooled.start + cache.length
    return range(first, first + cache.drafted + segment.nodes)


def _repeated(values: Iterable[int], counts: Iterable[int]) -> Iterable[int]:
    return chain(*([value] * count for value, count in zip(values, counts, strict=False)))


def _padded(values: Iterable[int], size: int, padding: int) -> list[int]:
    numbers = [*values]
    return numbers + [padding] * (size - len(numbers))
