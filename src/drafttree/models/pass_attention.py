"""Attention of fused layers: the nodes of a pass to the rows of one KV cache."""

from typing import Any, NamedTuple, Protocol

import torch.nn.functional as F
from torch import Tensor

from drafttree.models.exact_attention import QueryBlock, attend_exactly
from drafttree.models.span import EVERYTHING, Span


class PassAttention(Protocol):
    """What the layers of a pass ask of attention, which alone knows whose rows are whose."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: Any, scale: float) -> Tensor:
        """Store new keys and values and attend to all that a node may see.

        Args:
            query: `[batch * nodes, heads, width]`.
            key: `[batch * nodes, key heads, width]`.
            value: likewise.
            rows: the layer's part of the pass's rows, which a layer hands on as it is.
            scale: of the scores.

        Returns:
            `[batch * nodes, heads * width]`.
        """
        ...


class RowAttention(NamedTuple):
    """Attention to the rows of one KV cache, of one sequence or a batch.

    Attributes:
        batch: sequences.
        nodes: tokens in each.
        mask: additive attention mask, as `TreePlan.mask` makes it.
        new_rows: rows of the KV cache that are the nodes'.
        span: how far back layers attend.
        blocks: how attention is split where texts must not depend on trees, else None.
    """

    batch: int
    nodes: int
    mask: Tensor | None
    new_rows: slice | Tensor
    span: Span = EVERYTHING
    blocks: list[QueryBlock] | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`; `rows` are the keys and values `[batch, key heads, rows, width]` of a layer."""
        for stored, new in zip(rows, (key, value), strict=True):
            stored[:, :, self.new_rows] = new.unflatten(0, (self.batch, -1)).transpose(1, 2)
        return self.read(query.unflatten(1, (key.shape[1], -1)), *rows, scale).flatten(1)

    def read(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attend `[batch * nodes, key heads, groups, width]` to stored rows; the result has the query's shape."""
        if self.blocks is None and self.nodes == 1:
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, scale=scale)
        grouped = query.unflatten(0, (self.batch, self.nodes)).permute(0, 2, 3, 1, 4)
        if self.blocks is None:
            stacked = grouped.flatten(2, 3)
            out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=self.mask, scale=scale)
        else:
            out = attend_exactly(grouped, keys, values, self.mask, scale, self.blocks, self.span)
        return out.view(grouped.shape).permute(0, 3, 1, 2, 4).flatten(0, 1)
