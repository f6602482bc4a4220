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
        starts: int32 `[requests + 1]`: the first query of each request, and after the last request the end of its own.
        lengths: int32 `[requests]`: committed rows, at least 1. For an empty sequence torch's kernel writes past the
            end of what it returns (Dao-AILab/flash-attention#2573).
        firsts: int32 `[requests + 1]`: the first committed row of each request, whose rows are consecutive; the last
            number is not read.
        most_queries: an upper bound of the queries of one request.
    """

    starts: Tensor
    lengths: Tensor
    firsts: Tensor
    most_queries: int


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
    values = values.to(dtype).nan_to_num()  # a hidden row has weight zero, and zero times NaN is NaN
    return (scores.softmax(-1) @ values).transpose(0, 1), scores.logsumexp(-1)


@torch.inference_mode()
def find_varlen_attention(
    like: Tensor, heads: int, width: int, kernel: Callable[..., Any] = torch.ops.aten._flash_attention_forward
) -> VarlenAttention | None:
    """Torch's kernel if a trial on few rows gives the results of dense attention, else None.

    The kernel needs bfloat16 or float16 and an NVIDIA GPU of compute capability 8.0 or later. Sequences that do not end
    where the next one begins need `seqused_k`, which `torch.nn.attention.varlen` passes on from torch 2.13 on only, so
    the operator itself is called.

    Args:
        like: a tensor of the rows' dtype, on their device.
        heads: number of key heads.
        width: width of keys and values.
        kernel: a function with the signature of torch's `_flash_attention_forward`.
    """
    attend = partial(_attend, kernel)
    try:
        return attend if _is_right(attend, like, heads, width) else None
    except (RuntimeError, TypeError, ValueError):
        return None


def _attend(
    kernel: Callable[..., Any], query: Tensor, keys: Tensor, values: Tensor, prefixes: Prefixes, scale: float
) -> tuple[Tensor, Tensor]:
    starts, lengths, firsts, most_queries = prefixes
    out, lse, *_ = kernel(
        query,
        keys.transpose(0, 1),
        values.transpose(0, 1),
        starts,
        firsts,
        most_queries,
        keys.shape[1],
        dropout_p=0.0,
        is_causal=False,
        return_debug_mask=False,
        scale=scale,
        seqused_k=lengths,
    )
    return out, lse


def _is_right(attend: VarlenAttention, like: Tensor, heads: int, width: int) -> bool:
    """Whether three requests, whose rows are in no order, get the results of dense attention."""
    queries = (5, 1, 30)
    lengths = (300, 1, 512)
    firsts = (612, 400, 50)
    rows = 1000
    inputs = _random_inputs(like, sum(queries), heads, rows, width)
    to_int = partial(torch.tensor, dtype=torch.int32, device=like.device)
    prefixes = Prefixes(to_int((0, 5, 6, 36)), to_int(lengths), to_int((*firsts, 0)), max(queries))
    visible = torch.zeros(sum(queries), rows, dtype=torch.bool)
    for request_mask, first_row, length in zip(visible.split(queries), firsts, lengths, strict=True):
        request_mask[:, first_row : first_row + length] = True
    results = attend(*inputs, prefixes, width**-0.5)
    references = attend_densely(*inputs, visible.to(like.device), width**-0.5)
    return _largest_error(results, references) <= 8 * torch.finfo(like.dtype).eps


def _random_inputs(like: Tensor, queries: int, heads: int, rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random inputs of a `VarlenAttention`, of the dtype and device of a tensor: query, keys and values."""
    generator = torch.Generator(like.device).manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=like.dtype, device=like.device)
    query = draw(queries, heads, width)
    keys, values = draw(2, heads, rows, width)
    return query, keys, values


def _largest_error(results: Sequence[Tensor], references: Sequence[Tensor]) -> float:
    """The largest difference between tensors and those they should equal; infinite where one is NaN."""
    errors = []
    for result, reference in zip(results, references, strict=True):
        errors.append(float((result - reference).abs().nan_to_num(math.inf).max()))
    return max(errors)
