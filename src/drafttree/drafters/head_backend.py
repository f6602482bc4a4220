"""The fastest way to run an EAGLE head: on a backend for its layers, which are built as a model's are.

A head is one layer, so the overhead of a call weighs more than for any model: transformers' layer takes twice as many
operations as a fused one, and drafttree-native runs a level in one call.

"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from drafttree.drafters.base import HiddenStates, as_tensor
from drafttree.drafters.eagle import EagleHead, over_vocabulary
from drafttree.drafters.head import Head
from drafttree.drafters.ranked_logits import DraftLogits, logits_of
from drafttree.models import Segment, TreeCache
from drafttree.models.attention.varlen_attention import find_varlen_attention
from drafttree.models.backend_choice import NOT_RUN
from drafttree.models.families import STATIC_ROPES
from drafttree.models.fused.decoder_backend import DecoderBackend
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.module.plain_module import is_plain_module
from drafttree.models.native.native_backend import NativeBackend, why_not_packable
from drafttree.models.recorded.cuda_graphs import CudaGraphs
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.segment import join, undo_pass
from drafttree.models.triton.kernel_failures import KernelError, why_it_does_not_run
from drafttree.models.triton.triton_support import (
    prefers_triton,
    triton_backend_of,
    why_not_kernels,
)
from drafttree.models.windows import EVERYTHING

logger = logging.getLogger("drafttree")
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
REDUCED_TOLERANCE = 0.1
"""Tolerance for dtypes with less precision than float32."""
ROWS = 3
CPU_ROWS = 16
"""On a CPU, if there are more rows than this, they are padded to a multiple of it before they are fused."""


class HeadBackend:
    """Runs a head on a backend of its layers; see `drafttree.drafters.head.Head` for the protocol.

    Args:
        head: the head, frozen.
        backend: what runs the head's layers.

    Attributes:
        backend: as given; fused layers after a kernel did not compile.
    """

    def __init__(self, head: EagleHead, backend: NativeBackend | DecoderBackend | RecordedBackend) -> None:
        self.backend = backend
        self._head = head
        self._token_ids = None if head.target_ids is None else head.target_ids.cpu().numpy()

    def new_cache(self, capacity: int) -> TreeCache:
        return self.backend.new_cache(capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """As `Head.fuse`; on a CPU, many rows are padded to a multiple of `CPU_ROWS`.

        In bfloat16, torch there compiles a kernel for each number of rows. Each takes 1 ms and 80 kB, and torch keeps
        about 1,000 of them.
        """
        rows = hidden_states[0].shape[1]
        if rows > CPU_ROWS and self._head.device.type == "cpu":
            hidden_states = tuple(F.pad(states, (0, 0, 0, -rows % CPU_ROWS)) for states in hidden_states)
        return self._head.fuse(hidden_states)[:, :rows]

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[DraftLogits, Tensor]:
        head = self._head
        layers = (head.output_layer,)
        try:
            outputs = self.backend.forward(segments, hidden_layers=layers, states=states)
        except KernelError as error:
            logger.warning("a draft head goes on without the kernels in Triton: %s", error)
            undo_pass(segments)
            self.backend = FusedBackend(head)
            outputs = self.backend.forward(segments, hidden_layers=layers, states=states)
        logits = logits_of(outputs, partial(over_vocabulary, head), self._token_ids)
        return logits, join([output.hidden[0] for output in outputs])

    @property
    def draft_chains(self) -> Any:
        """`drafttree.models.native.kernels.draft_chains` for the head, None if the backend is another one."""
        return self._draft_chains if isinstance(self.backend, NativeBackend) else None

    def _draft_chains(self, segments: Sequence[Segment], count: int, allowed: int, states: Tensor) -> Any:
        assert isinstance(self.backend, NativeBackend)
        head = self._head
        allowed = allowed if head.target_ids is None else head.lm_head.out_features
        return self.backend.draft_chains(segments, count, allowed, states, head.output_layer, head.target_ids)


def choose_head_backend(head: EagleHead) -> Head:
    """The fastest way to run a frozen head that gives the head's own logits; on CUDA passes of layers are recorded.

    Kernels in Triton are preferred as by `choose_backend`.
    """
    rope = (head.config.layer.rope_parameters or {}).get("rope_type")
    if rope not in STATIC_ROPES or not is_plain_module(head):
        return head
    own_logits = _probe(head, head)
    if on_triton := _trusted_on_triton(head, own_logits):
        if own_logits.device.type != "cuda":
            return on_triton
        recorded = HeadBackend(head, RecordedBackend(on_triton.backend, CudaGraphs(own_logits.device)))
        return recorded if _repeats(recorded, head, own_logits) else on_triton
    if native := _trusted(NativeBackend, head, own_logits):
        return native
    fused = _trusted(FusedBackend, head, own_logits)
    if fused is None or own_logits.device.type != "cuda" or fused.backend.spans != (EVERYTHING,):
        return fused or head
    heads, width, _ = head.layout.buffers[0]
    varlen = find_varlen_attention(fused.backend.empty, heads, width)
    recorded = HeadBackend(head, RecordedBackend(fused.backend, CudaGraphs(own_logits.device), varlen))
    return recorded if _repeats(recorded, head, own_logits) else fused


def _trusted_on_triton(head: EagleHead, own_logits: Tensor) -> Any:
    """The head on kernels in Triton; None if they are not preferred. If they cannot run it, the log says why."""
    if not prefers_triton():
        return None
    reason = why_not_kernels(own_logits.dtype, own_logits.device)
    if reason is None:
        try:
            backend = HeadBackend(head, triton_backend_of(head))
            agrees = _agrees(backend, head, own_logits)
            if isinstance(backend.backend, FusedBackend):  # a kernel did not compile, which is logged
                return None
            if agrees:
                return backend
            reason = "its logits differ from the head's own"
        except Exception as error:  # a compiler may raise anything
            reason = why_it_does_not_run(error)
    logger.warning("a draft head runs without the kernels in Triton: %s", reason)
    return None


def _trusted(backend_class: Any, head: EagleHead, own_logits: Tensor) -> Any:
    """The head on a backend of this class; None if it cannot be run on it or gives other logits."""
    if backend_class is NativeBackend and why_not_packable(head):
        return None
    try:
        backend = HeadBackend(head, backend_class(head))
        return backend if _agrees(backend, head, own_logits) else None
    except NOT_RUN:  # a layer was replaced by one of another kind or size
        return None


def _repeats(recorded: HeadBackend, head: EagleHead, own_logits: Tensor) -> bool:
    """Whether passes that were recorded on other tokens give the head's own logits when they are replayed."""
    _probe(recorded, head, shift=1)
    return _agrees(recorded, head, own_logits)


def _agrees(backend: Head, head: EagleHead, own_logits: Tensor) -> bool:
    gap = float((_probe(backend, head) - own_logits).abs().max()) / max(float(own_logits.abs().max()), 1.0)
    return gap <= TOLERANCE.get(own_logits.dtype, REDUCED_TOLERANCE)


@torch.inference_mode()
def _probe(backend: Head, head: EagleHead, shift: int = 0) -> Tensor:
    """Draft logits of `ROWS` rows after `ROWS` committed ones. `shift` selects other tokens and states."""
    weight = head.fc.weight
    states = torch.linspace(-1, 1, ROWS * weight.shape[1], device=weight.device).to(weight.dtype)
    input_states = backend.fuse(states.view(1, ROWS, -1).roll(shift, 1).split(head.config.target_hidden, -1))
    cache = backend.new_cache(2 * ROWS)
    tokens = [(row + shift) % head.config.vocab for row in range(ROWS)]
    _, input_states = backend([Segment.of_text(cache, tokens)], input_states)
    cache.commit(range(ROWS))
    draft_logits, _ = backend([Segment.of_text(cache, tokens)._replace(wanted=slice(None))], input_states)
    logits = as_tensor(draft_logits, input_states.device)
    return logits if head.target_ids is None else logits[:, head.target_ids]
