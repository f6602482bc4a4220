"""The fastest way to compute the logits of Medusa's heads, which read nothing but one hidden state."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.drafters.target_parts import final_logits, projection, scaled_logits, zero_hidden
from drafttree.models.triton.kernel_failures import KernelError, why_it_does_not_run
from drafttree.models.triton.triton_support import prefers_triton, triton_heads_of, why_not_kernels

HeadLogits = Callable[[Tensor], Tensor]
"""Maps contexts `[texts, hidden]` to logits `[texts, heads, vocab]`."""
logger = logging.getLogger("drafttree")
TOLERANCE = {torch.float32: 1e-4}
REDUCED_TOLERANCE = 0.1
"""Tolerance for dtypes with less precision than float32, relative to the largest logit."""
ROWS = 3


def choose_head_logits(heads: Any, target: PreTrainedModel) -> HeadLogits:
    """The heads on kernels in Triton, where `choose_backend` prefers them, else as they are; the log says why.

    Args:
        heads: a `MedusaHeads`.
        target: the model whose states they read.
    """

    def own_logits(contexts: Tensor) -> Tensor:
        outputs = heads(contexts)
        return final_logits(target, outputs) if heads.shares_output else outputs

    zeros = zero_hidden(target)
    if not prefers_triton():
        return own_logits
    reason = why_not_kernels(zeros.dtype, zeros.device)
    if reason is None:
        try:
            triton_logits = _on_triton(heads, target)
            if _agrees(triton_logits, own_logits, zeros):
                return CompiledHeads(triton_logits, own_logits)
            reason = "their logits differ from the heads' own"
        except Exception as error:  # a compiler may raise anything
            reason = why_it_does_not_run(error)
    logger.warning("Medusa's heads run without the kernels in Triton: %s", reason)
    return own_logits


class CompiledHeads:
    """The heads on kernels in Triton until one does not compile for a number of rows.

    Args:
        triton_logits: the heads on kernels in Triton.
        own_logits: the heads as they are, used from then on.
    """

    def __init__(self, triton_logits: HeadLogits, own_logits: HeadLogits) -> None:
        self._logits = triton_logits
        self._own_logits = own_logits

    def __call__(self, contexts: Tensor) -> Tensor:
        try:
            return self._logits(contexts)
        except KernelError as error:
            logger.warning("Medusa's heads go on without the kernels in Triton: %s", error)
        self._logits = self._own_logits
        return self._logits(contexts)


def _on_triton(heads: Any, target: PreTrainedModel) -> HeadLogits:
    blocks = [[block.linear for block in head[: heads.layers]] for head in heads]
    if not heads.shares_output:
        return triton_heads_of(heads, blocks, [head[-1] for head in heads])
    head_outputs = triton_heads_of(heads, blocks, [projection(target)])
    return lambda contexts: scaled_logits(target, head_outputs(contexts))


@torch.inference_mode()
def _agrees(triton_logits: HeadLogits, own_logits: HeadLogits, zeros: Tensor) -> bool:
    """Whether the kernels give the heads' own logits of some contexts."""
    width = zeros.shape[-1]
    contexts = torch.linspace(-1, 1, ROWS * width, device=zeros.device).to(zeros.dtype).view(ROWS, width)
    expected = own_logits(contexts).float()
    gap = float((triton_logits(contexts).float() - expected).abs().max()) / max(float(expected.abs().max()), 1.0)
    return gap <= TOLERANCE.get(zeros.dtype, REDUCED_TOLERANCE)
