"""The inputs of a packed pass whose requests have their rows in one allocation, of any sizes or rounded up to some."""

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from drafttree.models.buffer_pool import PooledCache
from drafttree.models.paged_attention import PagedAttention
from drafttree.models.paged_pool import PADDING_ROW
from drafttree.models.segment import Segment
from drafttree.models.span import EVERYTHING, Span
from drafttree.models.varlen_attention import PAGE, Prefixes, VarlenAttention


class PagedSizes(NamedTuple):
    """The sizes of a pass: all its shapes.

    Attributes:
        nodes: of all requests.
        drafted: drafted rows of all requests, the nodes' included.
        requests: in the pass.
        pages: of one request at most.
        most_nodes: of one request at most.
    """

    nodes: int
    drafted: int
    requests: int
    pages: int
    most_nodes: int

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> "PagedSizes":
        """The sizes of a pass without padding."""
        nodes = [segment.nodes for segment in segments]
        drafted = sum(segment.visible.shape[2] for segment in segments)
        pages = max(-(-segment.cache.length // PAGE) for segment in segments)
        return cls(sum(nodes), drafted, len(segments), max(pages, 1), max(nodes))


class PagedTensors(NamedTuple):
    """What a pass reads on the device; padding nodes belong to no request.

    Attributes:
        tokens: `[1, nodes]` token ids.
        positions: `[1, nodes]`.
        hidden: `[1, nodes, hidden]`, the states an EAGLE-3 head reads; empty for a model.
        visible: bool `[nodes, drafted]`: which drafted rows a node attends to.
        new_rows: `[nodes]` where its keys and values are written.
        tree_rows: `[drafted]` where the drafted rows are.
        starts: int32 `[requests + 1]`: the first node of every request, and the end of the last one's.
        lengths: int32 `[requests]`: committed rows, at least 1.
        pages: int32 `[requests, pages]`: where they are.
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
    pages: Tensor
    has_prefix: Tensor

    @classmethod
    def of(cls, segments: Sequence[Segment], hidden: Tensor, sizes: PagedSizes) -> "PagedTensors":
        """The tensors of a pass on the rows that its requests have in a `PagedPool`, padded to sizes."""
        index = _RowIndex.of(segments, sizes, hidden.device)
        padding = sizes.nodes - sum(segment.nodes for segment in segments)
        same = index.node_owners[:, None] == index.row_owners
        visible = torch.cat([segment.visible.flatten() for segment in segments])
        return cls(
            F.pad(torch.cat([segment.tokens for segment in segments], 1), (0, padding)),
            F.pad(torch.cat([segment.positions for segment in segments], 1), (0, padding)),
            F.pad(hidden, (0, 0, 0, padding)) if hidden.numel() else hidden,
            same.masked_scatter(same, visible),
            index.new_rows,
            index.tree_rows,
            index.starts.int(),
            index.lengths.clamp(min=1).int(),
            index.pages.view(sizes.requests, sizes.pages).int(),
            index.has_prefix.bool(),
        )


class PagedInputs(NamedTuple):
    """The inputs of a pass; layers see one sequence of all nodes.

    Attributes:
        tensors: as they are, or in memory that stays where it is.
        rows: per layer all keys and values `[key heads, rows, width]` of the allocation.
        groups: query heads that share a key head.
        most_nodes: of one request.
        attend_to_prefixes: attends to the committed rows.
    """

    tensors: PagedTensors
    rows: list[tuple[Tensor, Tensor]]
    groups: int
    most_nodes: int
    attend_to_prefixes: VarlenAttention

    @property
    def tokens(self) -> Tensor:
        """`[1, nodes]` token ids."""
        return self.tensors.tokens

    @property
    def positions(self) -> Tensor:
        """`[1, nodes]`."""
        return self.tensors.positions

    @property
    def hidden(self) -> Tensor:
        """`[1, nodes, hidden]`, the states an EAGLE-3 head reads; empty for a model."""
        return self.tensors.hidden

    def attention(self, span: Span = EVERYTHING) -> PagedAttention:
        """Attention of the layers that attend so far back, which are all of them."""
        tensors, groups = self.tensors, self.groups
        prefixes = Prefixes(tensors.starts * groups, tensors.lengths, tensors.pages, self.most_nodes * groups)
        visible, has_prefix = (each.repeat_interleave(groups, 0) for each in (tensors.visible, tensors.has_prefix))
        places = tensors.new_rows, tensors.tree_rows
        return PagedAttention(self.attend_to_prefixes, *places, visible, prefixes, has_prefix)


class _RowIndex(NamedTuple):
    """The numbers of a pass, which the host knows, padded; see `PagedTensors`.

    Attributes:
        node_owners: the request of every node.
        row_owners: of every drafted row.
    """

    new_rows: Tensor
    tree_rows: Tensor
    node_owners: Tensor
    row_owners: Tensor
    has_prefix: Tensor
    starts: Tensor
    lengths: Tensor
    pages: Tensor

    @classmethod
    def of(cls, segments: Sequence[Segment], sizes: PagedSizes, device: torch.device) -> "_RowIndex":
        """The numbers on a device, by one copy that the host does not wait for."""
        nodes, drafted, requests, pages, _ = sizes
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
            _padded(chain(*(_pages(segment, pages) for segment in segments)), requests * pages, 0),
        )
        numbers = torch.tensor([*chain(*columns)]).to(device, non_blocking=True)
        return cls(*numbers.split([*map(len, columns)]))


def _tree_rows(segment: Segment) -> range:
    """Where the drafted rows of a request are in the allocation, those of its nodes included."""
    cache = segment.cache
    assert isinstance(cache, PooledCache)
    first = cache.pooled.start + cache.length
    return range(first, first + cache.drafted + segment.nodes)


def _pages(segment: Segment, count: int) -> list[int]:
    """The pages of a request's committed rows, padded; an empty one has the page of its first row."""
    first = _tree_rows(segment).start - segment.cache.length
    used = max(-(-segment.cache.length // PAGE), 1)
    return _padded(range(first // PAGE, first // PAGE + used), count, 0)


def _repeated(values: Iterable[int], counts: Iterable[int]) -> Iterable[int]:
    return chain(*([value] * count for value, count in zip(values, counts, strict=False)))


def _padded(values: Iterable[int], size: int, padding: int) -> list[int]:
    numbers = [*values]
    return numbers + [padding] * (size - len(numbers))
