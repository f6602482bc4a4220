"""The backends of an EAGLE-3 head on fused layers: the module's function with less in between.

A head is one layer, so the price of calling it weighs more than in any model: transformers' layer makes twice as many
operations as a fused one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.eagle import Eagle3Head, EagleHead, read_out
from drafttree.drafters.head import Head
from drafttree.drafters.native_eagle import NativeEagle
from drafttree.models import Segment, TreeCache
from drafttree.models.attention.varlen_attention import VarlenAttention, find_varlen_attention
from drafttree.models.cache.buffer_pool import Recorder
from drafttree.models.fused.fused_backend import STATIC_ROPES
from drafttree.models.fused.fused_layers import LlamaLayer, PassContext, RotaryAngles, rms_norm
from drafttree.models.fused.fused_linear import fuse
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.module.plain_module import is_plain_module
from drafttree.models.native.kernels import knows
from drafttree.models.recorded.cuda_graphs import CudaGraphs
from drafttree.models.recorded.recorded_passes import RecordedPasses
from drafttree.models.windows import EVERYTHING

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
REDUCED_TOLERANCE = 0.1
"""For dtypes of less precision than float32."""
ROWS = 3


class FusedEagle3:
    """Runs a head on fused weights; see `drafttree.drafters.head.Head` for the protocol.

    Args:
        head: frozen; its parameters become views of the fused ones.

    Attributes:
        layout: the layout of its KV cache.
        groups: query heads that share a key head.
        like: a weight, of the head's dtype and device.
        config: of the head.
        target_ids: of the head.
    """

    def __init__(self, head: Eagle3Head) -> None:
        first = head.layers[0]
        self._module = head
        self._fc, self._lm_head = fuse(head.fc), fuse(head.lm_head)
        self._token_norm, self._state_norm = rms_norm(first.input_layernorm), rms_norm(first.hidden_norm)
        self._norm = rms_norm(head.norm)
        self._first, *self._rest = [LlamaLayer(layer, head.config.layer) for layer in head.layers]
        self._angles = RotaryAngles(head.rotary, head.fc.weight.dtype)
        self.layout, self.groups = head.layout, self._first.groups
        self.like, self.config, self.target_ids = head.fc.weight, head.config, head.target_ids

    def new_cache(self, capacity: int) -> TreeCache:
        return self._module.new_cache(capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        states = self._module.normed_states(hidden_states)
        return self._fc(states.flatten(0, 1)).unflatten(0, states.shape[:2])

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[Tensor, Tensor]:
        output = self.run(PassInputs.of(segments, states))
        for segment in segments:
            segment.cache.grow(segment.positions)
        return read_out(self, segments, output)

    def run(self, inputs: PassInputs) -> Tensor:
        """A pass on the memory of its inputs; the output `[1, rows, hidden]`."""
        head, hidden = self._module, inputs.hidden
        context = PassContext(*self._angles.of(inputs.positions), inputs.attention(EVERYTHING, self.groups))
        x = hidden.flatten(0, 1)
        normed = self._state_norm(x)
        pair = torch.cat((self._token_norm(head.embed_tokens(inputs.tokens).flatten(0, 1)), normed), -1)
        residual = normed if self.config.normed_residual else x
        x = self._first.forward_from(residual, pair, context, inputs.rows[0])
        for layer, rows in zip(self._rest, inputs.rows[1:], strict=True):
            x = layer.forward(x, context, rows)
        return x.view(hidden.shape)

    def next_hidden(self, output: Tensor) -> Tensor:
        return self._norm(output) if self.config.normed_output else output

    def draft_logits(self, output: Tensor) -> Tensor:
        states = self._norm(output) if self.config.normed_logits else output
        return self._lm_head(states.flatten(0, 1)).unflatten(0, output.shape[:2])


class RecordedEagle3:
    """Replays recorded passes of a fused head; see `drafttree.models.recorded.recorded_passes`.

    Args:
        fused: its weights stay where they are from then on.
        recorder: the recorder of passes.
        varlen: attends to the prefixes of several requests at once; without, each has calls of its own, unrecorded.
    """

    def __init__(self, fused: FusedEagle3, recorder: Recorder, varlen: VarlenAttention | None = None) -> None:
        self._fused = fused
        self._passes = RecordedPasses(recorder, fused.layout, fused.groups, fused.like, fused.config.hidden, varlen)

    def new_cache(self, capacity: int) -> TreeCache:
        return self._passes.new_cache(capacity)

    def reserve(self, rows: int) -> None:
        """Make room for so many rows of KV caches; see `RecordedPasses.reserve`."""
        self._passes.reserve(rows)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        return self._fused.fuse(hidden_states)

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[Tensor, Tensor]:
        fused = self._fused

        def run(inputs: PassInputs) -> tuple[Tensor]:
            return (fused.run(inputs),)

        return read_out(fused, segments, self._passes.replay(segments, run, hidden=states)[0])


def select_backend(head: EagleHead) -> Head:
    """Select the fastest backend that gives a frozen head's own logits; on CUDA fused passes are recorded.

    Without drafttree-native, EAGLE-1 heads run as modules, and so do heads with a sliding window: the mask of a fused
    pass is the same for all layers and has no window.
    """
    rope = (head.config.layer.rope_parameters or {}).get("rope_type")
    if rope not in STATIC_ROPES or not is_plain_module(head):
        return head
    own = _probe(head, head)
    if native := _native(head, own):
        return native
    if not isinstance(head, Eagle3Head) or getattr(head.config.layer, "sliding_window", None) is not None:
        return head
    fused = FusedEagle3(head)
    if not _agrees(fused, head, own):
        return head
    if own.device.type != "cuda":
        return fused
    layer = fused.layout.buffers[0]
    recorded = RecordedEagle3(fused, CudaGraphs(own.device), find_varlen_attention(fused.like, *layer[:2]))
    return recorded if _repeats(recorded, head, own) else fused


def _native(head: EagleHead, own: Tensor) -> NativeEagle | None:
    if not knows(own.dtype, own.device):
        return None
    try:
        native = NativeEagle(head)
        return native if _agrees(native, head, own) else None
    except (AttributeError, RuntimeError, TypeError, ValueError):  # a layer was replaced by one of another kind or size
        return None


def _repeats(recorded: RecordedEagle3, head: Eagle3Head, own: Tensor) -> bool:
    """Whether passes that were recorded on other tokens give the head's own logits when they are replayed."""
    _probe(recorded, head, shift=1)
    return _agrees(recorded, head, own)


def _agrees(backend: Head, head: EagleHead, own: Tensor) -> bool:
    gap = float((_probe(backend, head) - own).abs().max()) / max(float(own.abs().max()), 1.0)
    return gap <= TOLERANCE.get(own.dtype, REDUCED_TOLERANCE)


@torch.inference_mode()
def _probe(backend: Head, head: EagleHead, shift: int = 0) -> Tensor:
    """The draft logits of rows behind as many committed ones; with a shift, of other tokens and states."""
    weight = head.fc.weight
    states = torch.linspace(-1, 1, ROWS * weight.shape[1], device=weight.device).to(weight.dtype)
    hidden = backend.fuse(states.view(1, ROWS, -1).roll(shift, 1).split(head.config.target_hidden, -1))
    rows = torch.arange(ROWS, device=weight.device)[None]
    causal = torch.ones(1, ROWS, ROWS, dtype=torch.bool, device=weight.device).tril()
    cache, tokens = backend.new_cache(2 * ROWS), (rows + shift) % head.config.vocab
    _, hidden = backend([Segment(cache, tokens, rows, causal)], hidden)
    cache.commit(range(ROWS))
    logits, _ = backend([Segment(cache, tokens, rows + ROWS, causal)], hidden)
    return logits if head.target_ids is None else logits[:, head.target_ids]
