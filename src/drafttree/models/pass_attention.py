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
        keys, values = rows
        heads, width = key.shape[1:]
        keys[:, :, self.new_rows] = key.unflatten(0, (self.batch, -1)).transpose(1, 2)
        values[:, :, self.new_rows] = value.unflatten(0, (self.batch, -1)).transpose(1, 2)
        grouped = query.reshape(self.batch, self.nodes, heads, -1, width).permute(0, 2, 3, 1, 4)
        if self.blocks is None:
            stacked = grouped.reshape(self.batch, heads, -1, width)
            out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=self.mask, scale=scale)
        else:
            out = attend_exactly(grouped, keys, values, self.mask, scale, self.blocks, self.span)
        return out.reshape(self.batch, -1, self.nodes, width).transpose(1, 2).reshape(len(query), -1)
