"""Attention whose result for a token does not depend on which other tokens are in the pass.

A token attends to the same rows in plain decoding and in a tree. But in a tree other branches lie between these rows,
so fused kernels add them up in another order. Here the rows are split at a row that depends on the token's position
only. Rows before it are committed, lie side by side and are the same in every pass: the device's own kernel reads them.
The rest, with the tree, is attended to in float64. There the order of a sum seldom changes the result in the model's
dtype: once in 2^44 values for bfloat16, once in 2^28 for float32. The two results are joined by their log-sum-exps.
"""

from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.models.segment import Segment
from drafttree.models.windows import Span

DEPTH = 64
"""Rows before a token that are always attended to in float64, since they may be drafted."""
BLOCK = 128
"""The split moves in steps of this many rows: for fewer, float64 is cheaper than a second kernel call."""
QUERIES = 16
"""Queries are padded to a multiple of this number, since kernels treat the last few differently."""


class QueryBlock(NamedTuple):
    """Tokens of a pass that share a split.

    Attributes:
        nodes: their indices in the pass.
        split: the first row that is attended to in float64.
    """

    nodes: slice
    split: int


def query_blocks(segment: Segment, device: torch.device) -> list[QueryBlock]:
    """Group the nodes of a segment by the row at which their attention is split.

    Raises:
        ModelError: the tree has more than `DEPTH` levels below its root.
    """
    if device.type != "cpu":  # kernels of other devices do not return the log-sum-exp in this way
        return [QueryBlock(slice(None), 0)]
    blocks = []
    start = 0
    for split_row, group in groupby(
        max(0, position - DEPTH) // BLOCK * BLOCK for position in segment.positions.tolist()
    ):
        end = start + len(list(group))
        blocks.append(QueryBlock(slice(start, end), split_row))
        start = end
    if max(block.split for block in blocks) > segment.cache.length and not _is_chain(segment.visible):
        raise ModelError(f"exact_text serves trees of at most {DEPTH} levels; give the policy a smaller depth")
    return blocks


def _is_chain(visible: Array) -> bool:
    """Whether every node attends to all rows before it."""
    nodes, drafted = visible.shape
    return bool(visible[np.tri(nodes, drafted, drafted - nodes, dtype=bool)].all())


def attend_exactly(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float | None,
    blocks: list[QueryBlock],
    span: Span,
) -> Tensor:
    """Attention whose result for a query is the same in every pass.

    Args:
        query: `[1, key heads, groups, nodes, width]`.
        keys: `[1, key heads, rows, width]`.
        values: `[1, key heads, rows, width of the values]`.
        mask: additive `[1, 1, groups * nodes, rows]`, None where every row is visible.
        scale: factor of the scores; None for 1 / sqrt(width).
        blocks: the nodes by the row at which their attention is split.
        span: how far back the layer attends.

    Returns:
        `[1, key heads, groups, nodes, width of the values]`.
    """
    masks = None if mask is None else mask.unflatten(2, query.shape[2:4])
    is_split = _is_split(keys, values, span)
    outs = [
        _attend(
            query[:, :, :, block.nodes],
            keys,
            values,
            None if masks is None else masks[:, :, :, block.nodes],
            scale,
            block.split if is_split else 0,
            span,
        )
        for block in (blocks if is_split else [QueryBlock(slice(None), 0)])
    ]
    return outs[0] if len(outs) == 1 else torch.cat(outs, 3)


def _is_split(keys: Tensor, values: Tensor, span: Span) -> bool:
    """Whether a kernel can read the first rows: each query must see one of them, and values be as wide as keys."""
    has_visible_row = span.chunk is None and (span.window is None or span.window > DEPTH + BLOCK)
    return has_visible_row and keys.shape[-1] == values.shape[-1]


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None, split_row: int, span: Span
) -> Tensor:
    """Attend to the rows from `split_row` on in float64, and to those before it with the device's kernel."""
    stacked_query = query.flatten(2, 3)
    masks = None if mask is None else mask.flatten(2, 3)
    suffix_mask = None if masks is None else masks[..., split_row:].double()
    suffix_qkv = stacked_query.double(), keys[:, :, split_row:].double(), values[:, :, split_row:].double()
    if split_row == 0:
        out = F.scaled_dot_product_attention(*suffix_qkv, attn_mask=suffix_mask, scale=scale)
    else:
        out, suffix_lse = _with_log_sum_exp(*suffix_qkv, suffix_mask, scale)
        prefix_keys, prefix_values = keys[:, :, :split_row], values[:, :, :split_row]
        prefix_mask = None
        if not span.reaches(split_row + DEPTH + BLOCK):
            prefix_mask = (
                stacked_query.new_zeros(1, 1, stacked_query.shape[2], split_row)
                if masks is None
                else masks[..., :split_row]
            )
        prefix_out, prefix_lse = _attend_to_prefix(stacked_query, prefix_keys, prefix_values, prefix_mask, scale)
        out = out.lerp(prefix_out.double(), torch.sigmoid(prefix_lse - suffix_lse).unsqueeze(-1))
    return out.to(query.dtype).unflatten(2, query.shape[2:4])


def _attend_to_prefix(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attend to the rows before the split with the device's own kernel, in the model's dtype."""
    count = query.shape[2]
    padding = 0, 0, 0, -count % QUERIES
    masks = None if mask is None else F.pad(mask, padding)
    out, lse = _with_log_sum_exp(F.pad(query, padding), keys, values, masks, scale)
    return out[:, :, :count], lse[:, :, :count]


def _with_log_sum_exp(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention `[batch, heads, queries, width]` and the log-sum-exp of its scores `[batch, heads, queries]`."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, False, attn_mask=mask, scale=scale
    )
