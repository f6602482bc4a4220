"""Attention to the prefixes of several requests in one call: torch's kernel for sequences of different lengths."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Prefixes(NamedTuple):
    """Where the queries and the committed rows of each request are.

    Attributes:
        query_starts: int32 `[requests + 1]`: index of each request's first query, then the number of all queries.
        row_counts: int32 `[requests]`: number of each request's committed rows, at least 1. For an empty sequence
            torch's kernel writes past the end of what it returns (Dao-AILab/flash-attention#2573).
        row_starts: int32 `[requests + 1]`: index of each request's first committed row, after which the others follow.
            The last number is not read.
        max_queries: upper bound of the queries of one request.
    """

    query_starts: Tensor
    row_counts: Tensor
    row_starts: Tensor
    max_queries: int


class VarlenAttention(Protocol):
    """Attention of several requests, each of whose queries attend to its committed rows."""

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, prefixes: Prefixes, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend to all committed rows.

        Args:
            query: `[queries, heads, width]`.
            keys: `[heads, rows, width]` of all requests.
            values: values of the same shape.
            prefixes: where the queries and rows of each request are. Queries after the last request's belong to none,
                and their results may be anything.
            scale: factor of the scores.

        Returns:
            The result, of the query's shape, and the log-sum-exp of its scores, float32 `[heads, queries]`.
        """
        ...


def attend_densely(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of every query to the rows that are visible to it, in float32 or, for float64 inputs, in float64.

    Args:
        query: `[queries, heads, width]`.
        keys: `[heads, rows, width]`.
        values: values of the same shape.
        visible: bool `[queries, rows]`.
        scale: factor of the scores.

    Returns:
        The result, of the query's shape, and the log-sum-exp of its scores `[heads, queries]`.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    scores = query.transpose(0, 1).to(dtype) @ keys.to(dtype).transpose(1, 2) * scale
    scores = scores.masked_fill(~visible, torch.finfo(dtype).min)
    values = values.to(dtype).nan_to_num()  # a row that is not visible has weight zero, and zero times NaN is NaN
    return (scores.softmax(-1) @ values).transpose(0, 1), scores.logsumexp(-1)


@torch.inference_mode()
def find_varlen_attention(
    reference_tensor: Tensor,
    heads: int,
    width: int,
    kernel: Callable[..., Any] = torch.ops.aten._flash_attention_forward,
) -> VarlenAttention | None:
    """Torch's kernel if a trial on few rows gives the results of dense attention, else None.

    The kernel needs bfloat16 or float16 and an NVIDIA GPU of compute capability 8.0 or later. Sequences that do not end
    where the next one begins need `seqused_k`. Before torch 2.13, `torch.nn.attention.varlen` does not pass it on, so
    the operator itself is called.

    Args:
        reference_tensor: a tensor of the rows' dtype, on their device.
        heads: number of key heads.
        width: width of keys and values.
        kernel: a function with the signature of torch's `_flash_attention_forward`.
    """
    attend = partial(_attend, kernel)
    try:
        return attend if _is_right(attend, reference_tensor, heads, width) else None
    except (RuntimeError, TypeError, ValueError):
        return None


def _attend(
    kernel: Callable[..., Any], query: Tensor, keys: Tensor, values: Tensor, prefixes: Prefixes, scale: float
) -> tuple[Tensor, Tensor]:
    query_starts, row_counts, row_starts, max_queries = prefixes
    out, lse, *_ = kernel(
        query,
        keys.transpose(0, 1),
        values.transpose(0, 1),
        query_starts,
        row_starts,
        max_queries,
        keys.shape[1],
        dropout_p=0.0,
        is_causal=False,
        return_debug_mask=False,
        scale=scale,
        seqused_k=row_counts,
    )
    return out, lse


def _is_right(attend: VarlenAttention, reference_tensor: Tensor, heads: int, width: int) -> bool:
    """Whether three requests, whose rows are in no order, get the results of dense attention."""
    query_counts = (5, 1, 30)
    row_counts = (300, 1, 512)
    row_starts = (612, 400, 50)
    rows = 1000
    inputs = _random_inputs(reference_tensor, sum(query_counts), heads, rows, width)
    to_int = partial(torch.tensor, dtype=torch.int32, device=reference_tensor.device)
    prefixes = Prefixes(to_int((0, 5, 6, 36)), to_int(row_counts), to_int((*row_starts, 0)), max(query_counts))
    visible = torch.zeros(sum(query_counts), rows, dtype=torch.bool)
    for request_mask, start, count in zip(visible.split(query_counts), row_starts, row_counts, strict=True):
        request_mask[:, start : start + count] = True
    results = attend(*inputs, prefixes, width**-0.5)
    references = attend_densely(*inputs, visible.to(reference_tensor.device), width**-0.5)
    return _largest_error(results, references) <= 8 * torch.finfo(reference_tensor.dtype).eps


def _random_inputs(
    reference_tensor: Tensor, queries: int, heads: int, rows: int, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Random inputs of a `VarlenAttention`, of the dtype and device of a tensor: query, keys and values."""
    generator = torch.Generator(reference_tensor.device).manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=reference_tensor.dtype, device=reference_tensor.device)
    query = draw(queries, heads, width)
    keys, values = draw(2, heads, rows, width)
    return query, keys, values


def _largest_error(results: Sequence[Tensor], references: Sequence[Tensor]) -> float:
    """The largest difference between tensors and those they should equal; infinite where one is NaN."""
    errors = []
    for result, reference in zip(results, references, strict=True):
        errors.append(float((result - reference).abs().nan_to_num(math.inf).max()))
    return max(errors)
