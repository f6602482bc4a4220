"""The inputs of a pass through fused layers over one request or several, and the pass's attention."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from drafttree.models.attention.exact_attention import QueryBlock, attend_exactly
from drafttree.models.attention.tree_attention import TreePlan
from drafttree.models.segment import PassTensors, Segment, join, split
from drafttree.models.windows import EVERYTHING, Span


class PassAttention(Protocol):
    """Attention in a pass: layers see one sequence of nodes, and only this knows which rows belong to which request."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: Any, scale: float) -> Tensor:
        """Store new keys and values, and attend from each node to all rows that it may see.

        Args:
            query: `[nodes, heads, width]`.
            key: `[nodes, key heads, width]`.
            value: `[nodes, key heads, width]`.
            rows: the layer's entry of `PassInputs.rows`, which the layer hands on unchanged.
            scale: factor of the scores.

        Returns:
            `[nodes, heads * width]`.
        """
        ...

    def read(self, query: Tensor, rows: Any, scale: float) -> Tensor:
        """Attend as `attend` does, but to rows in which another layer has already stored the new keys and values."""
        ...


class LayerRows(NamedTuple):
    """Views of the rows of one layer.

    Attributes:
        stored: by segment, all keys and all values, each `[1, key heads, rows, width]`.
        new: the rows to which the nodes' keys and values are written, each `[nodes, key heads, width]`. The keys of all
            segments come first, then their values.
    """

    stored: Sequence[tuple[Tensor, Tensor]]
    new: list[Tensor]


class Visibility(NamedTuple):
    """Which rows the nodes of one segment attend to.

    Attributes:
        mask: additive attention mask, as `TreePlan.mask` makes it.
        span: how far back layers attend.
        blocks: how attention is split for `exact_text`; None without it.
    """

    mask: Tensor | None
    span: Span = EVERYTHING
    blocks: list[QueryBlock] | None = None

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Attend from `[nodes, key heads, groups, width]` to rows `[1, key heads, rows, width]`."""
        if self.blocks is None and len(query) == 1:
            return F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, scale=scale)
        grouped_query = query[None].permute(0, 2, 3, 1, 4)
        if self.blocks is None:
            stacked_query = grouped_query.flatten(2, 3)
            out = F.scaled_dot_product_attention(stacked_query, keys, values, attn_mask=self.mask, scale=scale)
        else:
            out = attend_exactly(grouped_query, keys, values, self.mask, scale, self.blocks, self.span)
        return out.view(grouped_query.shape).permute(0, 3, 1, 2, 4).flatten(0, 1)


class RowAttention(NamedTuple):
    """Attention of every segment to the rows of its own KV cache, one call for each. See `PassAttention`.

    Attributes:
        sizes: number of nodes of every segment.
        visible: rows that the nodes of every segment attend to.
    """

    sizes: list[int]
    visible: list[Visibility]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: LayerRows, scale: float) -> Tensor:
        sizes = self.sizes  # a pass over one request makes no lists, since they take time
        new_rows = (key, value) if len(sizes) == 1 else (*split(key, sizes, 0), *split(value, sizes, 0))
        # one call for all segments: most have a single row
        torch._foreach_copy_(rows.new, new_rows)  # pyright: ignore[reportPrivateImportUsage]
        return self.read(query, rows, scale)

    def read(self, query: Tensor, rows: LayerRows, scale: float) -> Tensor:
        grouped_query = query.unflatten(1, (rows.stored[0][0].shape[1], -1))
        if len(self.sizes) == 1:
            return self.visible[0].attend(grouped_query, *rows.stored[0], scale).flatten(1)
        segment_inputs = zip(self.visible, split(grouped_query, self.sizes, 0), rows.stored, strict=True)
        return join(
            [visible.attend(queries, *stored_rows, scale) for visible, queries, stored_rows in segment_inputs], 0
        ).flatten(1)


class PassInputs(NamedTuple):
    """The inputs of one pass; layers see one sequence of all nodes.

    Attributes:
        tokens: `[1, nodes]` token ids.
        positions: `[1, nodes]`.
        hidden: `[1, nodes, hidden]` states that a draft head reads; empty for a model.
        rows: by layer, the rows in the form that its attention takes.
        attention: makes the attention of layers from their span and the number of query heads that share a key head.
    """

    tokens: Tensor
    positions: Tensor
    hidden: Tensor
    rows: Sequence[Any]
    attention: Callable[[Span, int], PassAttention]

    @classmethod
    def of(cls, segments: Sequence[Segment], hidden_states: Tensor) -> "PassInputs":
        """The inputs of a pass over segments, each with attention to the rows of its own KV cache.

        Args:
            segments: the parts of the pass.
            hidden_states: the states that a draft head reads; for a model an empty tensor of its dtype, on its device.
        """
        for segment in segments:  # making room for one segment may move the rows of all
            segment.cache.reserve(hidden_states, segment.nodes)
        sizes = [segment.nodes for segment in segments]
        tensors = PassTensors.of(segments, hidden_states.device)
        plan_arguments = zip(segments, tensors.segment_positions, tensors.visible, strict=True)
        plans = [TreePlan(*arguments, hidden_states.dtype) for arguments in plan_arguments]

        def attention(span: Span, groups: int) -> RowAttention:
            return RowAttention(sizes, [Visibility(plan.mask(groups, span), span, plan.blocks) for plan in plans])

        return cls(tensors.tokens, tensors.positions, hidden_states, _rows(segments, sizes), attention)


def _rows(segments: Sequence[Segment], sizes: Sequence[int]) -> list[LayerRows]:
    """The rows of every layer, for segments of these numbers of nodes."""
    layers = []
    for segment_rows in zip(
        *(segment.cache.pass_rows(size) for segment, size in zip(segments, sizes, strict=True)), strict=True
    ):
        keys, values, new_keys, new_values = zip(*segment_rows, strict=True)
        layers.append(LayerRows([*zip(keys, values, strict=True)], [*new_keys, *new_values]))
    return layers
