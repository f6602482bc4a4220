"""A stand-in for torch's attention over sequences of different lengths, on a CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
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
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float,
    seqused_k: Tensor,
) -> tuple[Tensor, Tensor]:
    """As torch's `_flash_attention_forward`, in float64, and refuses what the kernel cannot do or does wrong."""
    ints = cum_seq_q, cum_seq_k, seqused_k
    assert all(each.dtype == torch.int32 and each.stride(-1) == 1 for each in ints)
    assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    assert key.shape == value.shape
    assert query.shape[1:] == key.shape[1:]
    assert len(cum_seq_q) == len(cum_seq_k) == len(seqused_k) + 1
    assert not any((dropout_p, is_causal, return_debug_mask))
    return _attend(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, scale, seqused_k)


@torch.library.custom_op("drafttree_tests::varlen_attn", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    firsts: Tensor,
    max_q: int,
    max_k: int,
    scale: float,
    lengths: Tensor,
) -> tuple[Tensor, Tensor]:
    """Queries that belong to no sequence get what is in memory there: NaN.

    An operator of torch, so whoever records a pass sees it as one, which reads its numbers when it runs.
    """
    assert 0 <= starts.diff().min() <= starts.diff().max() <= max_q
    assert 0 < lengths.min() <= lengths.max() <= max_k
    out, sizes = torch.full_like(query, torch.nan), query.new_full(query.shape[1::-1], torch.nan, dtype=torch.float32)
    for start, end, length, first in zip(starts[:-1], starts[1:], lengths, firsts[:-1], strict=True):
        keys, values = (rows[first : first + length].transpose(0, 1).double() for rows in (key, value))
        scores = query[start:end].transpose(0, 1).double() @ keys.transpose(1, 2) * scale
        out[start:end] = (scores.softmax(-1) @ values).transpose(0, 1)
        sizes[:, start:end] = scores.logsumexp(-1)
    return out, sizes


def stand_in(kernel: Callable[..., Any] = varlen_attn) -> VarlenAttention:
    """The stand-in, or another, as it is used where it serves the rows."""
    found = find_varlen_attention(torch.zeros(0), 2, 8, kernel)
    assert found is not None
    return found


def packed(module: PreTrainedModel, recorder: Recorder, kernel: Callable[..., Any] = varlen_attn) -> TargetModel:
    """A model on fused layers whose packed passes use the stand-in, or another."""
    return TargetModel(module, lambda each: RecordedBackend(FusedBackend(each), recorder, stand_in(kernel)))
