"""A stand-in for torch's attention over sequences of different lengths, on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest
from transformers import PreTrainedModel

from drafttree.models import TargetModel
from drafttree.models.attention.varlen_attention import VarlenAttention, find_varlen_attention
from drafttree.models.cache.buffer_pool import Recorder
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded.recorded_passes import RecordedBackend


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux: AuxRequest,
    scale: float,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int,
) -> tuple[Tensor, Tensor]:
    """As `torch.nn.attention.varlen.varlen_attn`, in float64, and refuses what the kernel cannot do or does wrong."""
    if cu_seq_k is None:
        raise RuntimeError("cu_seq_q and cu_seq_k must be both set or both not set")
    ints = cu_seq_q, cu_seq_k, seqused_k, block_table
    assert all(each.dtype == torch.int32 and each.stride(-1) == 1 for each in ints)
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert key.shape == value.shape
    assert key.shape[1] % 256 == 0
    assert query.shape[1:] == key.shape[2:]
    assert len(cu_seq_q) - 1 == len(cu_seq_k) - 1 == len(seqused_k) == len(block_table)
    assert max_k <= block_table.shape[1] * key.shape[1]
    assert num_splits == 1
    assert return_aux.lse
    return _attend(query, key, value, cu_seq_q, max_q, max_k, scale, seqused_k, block_table)


@torch.library.custom_op("drafttree_tests::varlen_attn", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    max_q: int,
    max_k: int,
    scale: float,
    lengths: Tensor,
    pages: Tensor,
) -> tuple[Tensor, Tensor]:
    """Queries that belong to no sequence get what is in memory there: NaN.

    An operator of torch, so whoever records a pass sees it as one, which reads its numbers when it runs.
    """
    assert 0 <= starts.diff().min() <= starts.diff().max() <= max_q
    assert 0 < lengths.min() <= lengths.max() <= max_k
    out, sizes = torch.full_like(query, torch.nan), query.new_full(query.shape[1::-1], torch.nan, dtype=torch.float32)
    for first, end, length, own in zip(starts[:-1], starts[1:], lengths, pages, strict=True):
        keys, values = (rows[own.long()].flatten(0, 1)[:length].transpose(0, 1).double() for rows in (key, value))
        scores = query[first:end].transpose(0, 1).double() @ keys.transpose(1, 2) * scale
        out[first:end] = (scores.softmax(-1) @ values).transpose(0, 1)
        sizes[:, first:end] = scores.logsumexp(-1)
    return out, sizes


def stand_in(kernel: Callable[..., Any] = varlen_attn) -> VarlenAttention:
    """The stand-in, or another, as it is used where it serves the rows."""
    found = find_varlen_attention(torch.zeros(0), 2, 8, kernel)
    assert found is not None
    return found


def paged(module: PreTrainedModel, recorder: Recorder, kernel: Callable[..., Any] = varlen_attn) -> TargetModel:
    """A model on fused layers whose packed passes use the stand-in, or another."""
    return TargetModel(module, lambda each: RecordedBackend(FusedBackend(each), recorder, stand_in(kernel)))
