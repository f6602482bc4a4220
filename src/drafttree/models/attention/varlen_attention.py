"""Attention to the prefixes of several requests in one call: torch's kernel for sequences of different lengths."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.attention import varlen

from drafttree.models.cache.buffer_pool import PAGE


class Prefixes(NamedTuple):
    """The committed rows of several requests, and which queries attend to them.

    Attributes:
        starts: int32 `[requests + 1]`: the first query of every request, and the end of the last one's.
        lengths: int32 `[requests]`: committed rows, at least 1. For an empty sequence torch's kernel writes past the
            end of what it returns (Dao-AILab/flash-attention#2573).
        pages: int32 `[requests, most]`: the pages of these rows, one after the other.
        most_queries: a bound of the queries of one request.
    """

    starts: Tensor
    lengths: Tensor
    pages: Tensor
    most_queries: int


class VarlenAttention(Protocol):
    """Attention of the queries of several requests to the committed rows of each."""

    def __call__(
        self, query: Tensor, keys: Tensor, values: Tensor, prefixes: Prefixes, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Attend to all committed rows.

        Args:
            query: `[queries, heads, width]`.
            keys: `[heads, rows, width]` of all pages behind each other.
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
    like: Tensor, heads: int, width: int, kernel: Callable[..., Any] = varlen.varlen_attn
) -> VarlenAttention | None:
    """Torch's kernel where it serves such rows, which is tried on small ones; None elsewhere.

    It wants bfloat16 or float16, an NVIDIA GPU of compute capability 8.0 or later and torch 2.13: 2.12 refuses
    `num_splits` unless FlashAttention 3 is activated.

    Args:
        like: a tensor of the rows' dtype, on their device.
        heads: number of key heads.
        width: width of keys and values.
        kernel: a function with the signature of `torch.nn.attention.varlen.varlen_attn`.
    """
    for has_key_starts in (True, False):  # torch's own kernel wants them, that of FlashAttention 3 refuses them
        attend = partial(_attend, kernel, has_key_starts)
        try:
            if _is_right(attend, like, heads, width):
                return attend
        except (RuntimeError, TypeError, ValueError):  # TypeError: torch 2.11, whose kernel knows no pages
            continue
    return None


def _attend(
    kernel: Callable[..., Any],
    has_key_starts: bool,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    prefixes: Prefixes,
    scale: float,
) -> tuple[Tensor, Tensor]:
    starts, lengths, pages, most_queries = prefixes
    return kernel(
        query,
        _in_pages(keys),
        _in_pages(values),
        starts,
        starts if has_key_starts else None,  # checked, but not read: pages say where keys begin
        most_queries,
        pages.shape[1] * PAGE,
        return_aux=varlen.AuxRequest(lse=True),
        scale=scale,
        seqused_k=lengths,
        block_table=pages,
        num_splits=1,  # with more, torch 2.13 leaves out rows of all requests but the first (pytorch#194167)
    )


def _in_pages(rows: Tensor) -> Tensor:
    """`[pages, PAGE, heads, width]` of `[heads, rows, width]`."""
    return rows.unflatten(1, (-1, PAGE)).permute(1, 2, 0, 3)


def _is_right(attend: VarlenAttention, like: Tensor, heads: int, width: int) -> bool:
    """Whether three requests, whose pages are in no order, get the results of dense attention."""
    queries, lengths, pages = (5, 1, 30), (300, 1, 2 * PAGE), ((3, 1), (4, 0), (0, 2))
    generator = torch.Generator(like.device).manual_seed(0)
    draw = partial(torch.randn, generator=generator, dtype=like.dtype, device=like.device)
    query, keys, values = draw(sum(queries), heads, width), *draw(2, heads, 5 * PAGE, width)
    visible = torch.zeros(sum(queries), 5 * PAGE, dtype=torch.bool)
    for own, length, (first, second) in zip(visible.split(queries), lengths, pages, strict=True):
        own[:, first * PAGE : first * PAGE + min(length, PAGE)] = True
        own[:, second * PAGE : second * PAGE + max(length - PAGE, 0)] = True
    to_int = partial(torch.tensor, dtype=torch.int32, device=like.device)
    prefixes = Prefixes(to_int((0, 5, 6, 36)), to_int(lengths), to_int(pages), max(queries))
    found = attend(query, keys, values, prefixes, width**-0.5)
    right = attend_densely(query, keys, values, visible.to(like.device), width**-0.5)
    off = max(float((one - other).abs().nan_to_num(math.inf).max()) for one, other in zip(found, right, strict=True))
    return off <= 4 * torch.finfo(like.dtype).eps
