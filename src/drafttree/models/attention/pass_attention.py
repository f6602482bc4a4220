"""Attention of fused layers: the nodes of a pass to the rows of the KV caches of its segments."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from drafttree.models.attention.exact_attention import QueryBlock, attend_exactly
from drafttree.models.attention.span import EVERYTHING, Span
from drafttree.models.attention.varlen_attention import Prefixes, VarlenAttention, attend_densely
from drafttree.models.segment import join, split


class PassAttention(Protocol):
    """What the layers of a pass ask of attention, which alone knows whose rows are whose."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: Any, scale: float) -> Tensor:
        """Store new keys and values and attend to all that a node may see.

        Args:
            query: `[nodes, heads, width]`.
            key: `[nodes, key heads, width]`.
            value: likewise.
            rows: the layer's part of the pass's rows, which a layer hands on as it is.
            scale: of the scores.

        Returns:
            `[nodes, heads * width]`.
        """
        ...


class LayerRows(NamedTuple):
    """The rows of one layer.

    Attributes:
        stored: keys and values `[1, key heads, rows, width]` by segment.
        new: those of the nodes alone, each `[nodes, key heads, width]`, to be written: the keys by segment, then the
            values.
    """

    stored: Sequence[tuple[Tensor, Tensor]]
    new: list[Tensor]


class Visibility(NamedTuple):
    """Which rows the nodes of one segment attend to.

    Attributes:
        mask: additive attention mask, as `TreePlan.mask` makes it.
        span: how far back layers attend.
        blocks: how attention is split where texts must not depend on trees, else None.
    """

    mask: Tensor | None
    span: Span = EVERYTHING
    blocks: list[QueryBlock] | None = None

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attend `[nodes, key heads, groups, width]` to rows `[1, key heads, rows, width]`; of the query's shape."""
        if self.blocks is None and len(query) == 1:
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, scale=scale)
        grouped = query[None].permute(0, 2, 3, 1, 4)
        if self.blocks is None:
            stacked = grouped.flatten(2, 3)
            out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=self.mask, scale=scale)
        else:
            out = attend_exactly(grouped, keys, values, self.mask, scale, self.blocks, self.span)
        return out.view(grouped.shape).permute(0, 3, 1, 2, 4).flatten(0, 1)


class RowAttention(NamedTuple):
    """Attention of every segment to the rows of its own KV cache, in a call for each. See `PassAttention`.

    Attributes:
        sizes: nodes of every segment.
        visible: what they attend to.
    """

    sizes: list[int]
    visible: list[Visibility]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: LayerRows, scale: float) -> Tensor:
        if len(self.sizes) == 1:  # as below; a lone pass has no time for lists
            torch._foreach_copy_(rows.new, (key, value))  # pyright: ignore[reportPrivateImportUsage]
            grouped = query.unflatten(1, (key.shape[1], -1))
            return self.visible[0].attend(grouped, *rows.stored[0], scale).flatten(1)
        sizes = self.sizes
        new = *split(key, sizes, 0), *split(value, sizes, 0)
        # one call for all segments: most have a single row
        torch._foreach_copy_(rows.new, new)  # pyright: ignore[reportPrivateImportUsage]
        queries = split(query.unflatten(1, (key.shape[1], -1)), sizes, 0)
        own = zip(self.visible, queries, rows.stored, strict=True)
        return join([visible.attend(nodes, *stored, scale) for visible, nodes, stored in own], 0).flatten(1)


class StaticAttention(NamedTuple):
    """Attention of a recorded pass over one request to all rows there is room for. See `PassAttention`.

    Attributes:
        new_rows: `[nodes]` where the nodes' rows are to be written.
        visible: what they attend to.
    """

    new_rows: Tensor
    visible: Visibility

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`; `rows` are the keys and values `[1, key heads, rows, width]` of a layer."""
        for stored, new in zip(rows, (key, value), strict=True):
            stored[:, :, self.new_rows] = new[None].transpose(1, 2)
        return self.visible.attend(query.unflatten(1, (key.shape[1], -1)), *rows, scale).flatten(1)


class PagedAttention(NamedTuple):
    """Attention to the pages of several requests. See `PassAttention`.

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
        """See `PassAttention`; `rows` are all keys and values `[key heads, rows, width]` of a layer.

        Query heads that share a key head are stacked as queries: the rows are read once for all of them, and torch's
        kernel is not asked for groups, for single queries of which it orders the log-sum-exps in another way.
        """
        for stored, new in zip(rows, (key, value), strict=True):
            stored.index_copy_(1, self.new_rows, new.transpose(0, 1))
        grouped = query.unflatten(1, (key.shape[1], -1)).transpose(1, 2)
        stacked = grouped.flatten(0, 1)
        keys, values = (stored.index_select(1, self.tree_rows) for stored in rows)
        tree, tree_size = attend_densely(stacked, keys, values, self.visible, scale)
        prefix, prefix_size = self.attend_to_prefixes(stacked, *rows, self.prefixes, scale)
        share = torch.sigmoid(prefix_size - tree_size).masked_fill(~self.has_prefix, 0)
        out = tree.lerp(prefix.to(tree.dtype), share.t().unsqueeze(-1).to(tree.dtype))
        return out.to(query.dtype).view(grouped.shape).transpose(1, 2).flatten(1)
