"""Attention to the prefixes of several requests in one call: torch's kernel for sequences of different lengths."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Prefixes(NamedTuple):
    """The committed rows of several requests, and which queries attend to them.

    Attributes:
        starts: int32 `[requests + 1]`: the first query of every request, and the end of the last one's.
        lengths: int32 `[requests]`: committed rows, at least 1. For an empty sequence torch's kernel writes past the
            end of what it returns (Dao-AILab/flash-attention#2573).
        firsts: int32 `[requests + 1]`: the first of these rows, which are consecutive;
            the last number is not read.
        most_queries: a bound of the queries of one request.
    """

    starts: Tensor
    lengths: Tensor
    firsts: Tensor
    most_queries: int


class VarlenAttention(Protocol):
    """Attention of the queries of several requests to the committed rows of each."""

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, prefixes: Prefixes, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend to all committed rows.

        Args:
            query: `[queries, heads, width]`.
            keys: `[heads, rows, width]` of all requests.
            values: values of the same shape.
            prefixes: those of a query past the last request's are nobody's; its result may be anything.
            scale: factor of the scores.

        Returns:
            The result, of the query's shape, and the log-sum-exp of its scores, float32 `[heads, queries]`.
        """
        ...


def attend_densely(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attention of every query to the rows that are visible to it, computed in float32 at least.

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
    """Torch's kernel where it serves such rows, which is tried on small ones; None elsewhere.

    It wants bfloat16 or float16 and an NVIDIA GPU of compute capability 8.0 or later. `torch.nn.attention.varlen` gives
    it the lengths of sequences that do not end where the next one begins only from torch 2.13 on; the operator itself
    has known them for longer.

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
    generator = torch.Generator(like.device).manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=like.dtype, device=like.device)
    query, keys, values = draw(sum(queries), heads, width), *draw(2, heads, rows, width)
    visible = torch.zeros(sum(queries), rows, dtype=torch.bool)
    for request_mask, first_row, length in zip(visible.split(queries), firsts, lengths, strict=True):
        request_mask[:, first_row : first_row + length] = True
    to_int = partial(torch.tensor, dtype=torch.int32, device=like.device)
    prefixes = Prefixes(to_int((0, 5, 6, 36)), to_int(lengths), to_int((*firsts, 0)), max(queries))
    results = attend(query, keys, values, prefixes, width**-0.5)
    references = attend_densely(query, keys, values, visible.to(like.device), width**-0.5)
    error = max(
        float((result - reference).abs().nan_to_num(math.inf).max())
        for result, reference in zip(results, references, strict=True)
    )
    return error <= 8 * torch.finfo(like.dtype).eps
