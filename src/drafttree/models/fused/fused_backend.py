"""The backend that runs decoders of the known families on fused layers, with fewer operations and less Python.

The time of a pass over a small model is mostly overhead: a transformers layer runs some thirty operations under a dozen
Python frames. Here a layer is a dozen operations on fused weights (query, key and value; gate and up). They are
the module's own: its parameters become views of them, and the module keeps working.
`drafttree.models.backend_choice.choose_backend` compares the two before it prefers this one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.families import Entry, LayerInputs, LayerKind, describe, why_not_known
from drafttree.models.fused.fused_layer import FusedLayer, NormCall, PassContext
from drafttree.models.fused.fused_linear import fuse
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.fused.rotary_angles import RotaryAngles
from drafttree.models.module.module_checks import decoder_of
from drafttree.models.module.mtp_embedding import mtp_embedding_of
from drafttree.models.module.plain_module import why_not_plain
from drafttree.models.norms import norm_call
from drafttree.models.segment import BEFORE_NORM, Output, Segment, forward_in_groups, join, split, split_layers


class FusedBackend:
    """Runs fused layers. See `drafttree.models.base.Backend` for the protocol.

    Args:
        module: a model for which `why_not_fused` returns None, or a draft head that describes itself.

    Attributes:
        layout: layout of its KV caches.
        spans: the different spans of the layers.
        groups: number of query heads that share a key head in the first layer.
        hidden: width of the states that a draft head reads; 0 for a model.
        has_long_rope: whether rotary embeddings have other frequencies beyond their original context.
        is_uniform: whether the heads of all layers have one shape, and no layers share keys and values.
        empty: an empty tensor of the model's dtype, on its device.
    """

    exact_text = False
    lossy_window = None
    shares_passes = True
    packed_nbytes = 0
    fallback_reason: str | None = None

    def __init__(self, module: Any) -> None:
        architecture = describe(module)
        self.device = module.device
        self.empty = torch.empty(0, dtype=module.dtype, device=module.device)
        self.layout = architecture.layout
        self.spans = architecture.spans
        self.has_long_rope = architecture.has_long_rope
        first_attention = architecture.blocks[0].attention
        shapes = set[tuple[int, int, int]]()
        for block in architecture.blocks:
            shapes.add((block.attention.key_heads, block.attention.kind.groups, block.attention.width))
        self.is_uniform = len(shapes) == 1 and len(architecture.layout.slots) == len(architecture.blocks)
        self.groups = first_attention.kind.groups
        self.hidden = architecture.embedding.embedding_dim if architecture.entry else 0
        self._mtp_embedding = mtp_embedding_of(module)
        self._embed = architecture.embedding
        self._layers = [FusedLayer(block, index) for index, block in enumerate(architecture.blocks)]
        self._owners = architecture.owners
        self._entry = _FusedEntry(architecture.entry) if architecture.entry else None
        self._layer_inputs = architecture.layer_inputs
        self._norm: NormCall = (lambda x: x) if architecture.norm is None else norm_call(architecture.norm)
        self._head = fuse(architecture.head)
        dtype = self.empty.dtype
        self._angles: dict[LayerKind, RotaryAngles] = {}
        self._long_angles: dict[LayerKind, RotaryAngles] = {}
        for layer_kind in dict.fromkeys(layer.kind for layer in self._layers):
            rotary = architecture.rotaries[layer_kind.layer_type]
            angles = RotaryAngles(rotary.frequencies, rotary.scaling, dtype)
            self._angles[layer_kind] = self._long_angles[layer_kind] = angles
            if rotary.long_frequencies is not None:
                self._long_angles[layer_kind] = RotaryAngles(rotary.long_frequencies, rotary.scaling, dtype)
        self._embedding_scale = 1.0 if architecture.embedding_multiplier is None else architecture.embedding_multiplier
        self._logits_divisor = architecture.logits_divisor
        self._logits_cap = architecture.logits_cap

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self.layout, capacity)

    def forward(
        self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = (), states: Tensor | None = None
    ) -> list[Output]:
        """A pass; see `drafttree.models.base.Backend.forward`.

        Args:
            segments: the texts.
            hidden_layers: layers whose states are wanted, `BEFORE_NORM` for what the last norm reads.
            states: `[1, nodes, hidden]` that a draft head reads.
        """
        if not segments:
            return []
        if self.has_long_rope and len(segments) > 1:
            run = partial(self._run, hidden_layers=hidden_layers)
            return forward_in_groups(segments, lambda segment: segment.cache.long_rope, run)
        return self._run(segments, hidden_layers, states)

    def _run(
        self, segments: Sequence[Segment], hidden_layers: tuple[int, ...], states: Tensor | None = None
    ) -> list[Output]:
        """A pass over segments that have the same rotary frequencies."""
        if states is None and self._mtp_embedding:
            states = self._mtp_embedding.read_states(segments)
        inputs = PassInputs.of(segments, self.empty if states is None else states)
        x, hidden_states = self.run_layers(inputs, hidden_layers, segments[0].cache.long_rope)
        for segment in segments:
            segment.cache.grow(segment.positions)
        return self.outputs_of(segments, x, hidden_states)

    def outputs_of(self, segments: Sequence[Segment], x: Tensor, hidden_states: tuple[Tensor, ...]) -> list[Output]:
        """The output of each segment, made from the states that `run_layers` returns."""
        states_by_segment = zip(split(x, [segment.nodes for segment in segments]), segments, strict=True)
        wanted_states = [segment.wanted_of(segment_states) for segment_states, segment in states_by_segment]
        logits = split(self.logits(join(wanted_states)), [states.shape[1] for states in wanted_states])
        return [*map(Output, logits, split_layers(segments, hidden_states))]

    def run_layers(
        self, inputs: PassInputs, hidden_layers: tuple[int, ...], long_rope: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the layers; the states `[1, nodes, hidden]` after the last norm, and those of each of `hidden_layers`.

        Args:
            inputs: the inputs of the pass.
            hidden_layers: the layers whose states are wanted, as of `forward`.
            long_rope: whether LongRoPE's long frequencies apply.
        """
        x = self._embed(inputs.tokens).flatten(0, 1)
        if self._embedding_scale != 1:
            x = x * self._embedding_scale
        layer_inputs = _computed(self._layer_inputs, inputs.tokens, x)
        contexts = {
            layer_kind: PassContext(
                *angles.of(inputs.positions), inputs.attention(layer_kind.span, layer_kind.groups), layer_inputs
            )
            for layer_kind, angles in (self._long_angles if long_rope else self._angles).items()
        }
        attention_input = None
        if self._entry:
            x, attention_input = self._entry(x, inputs.hidden.flatten(0, 1))
        states: dict[int, Tensor] = {}
        rows_by_layer = dict(zip(self.layout.slots, inputs.rows, strict=True))
        for index, (layer, owner) in enumerate(zip(self._layers, self._owners, strict=True)):
            if index in hidden_layers:
                states[index] = x
            x = layer.forward(x, contexts[layer.kind], rows_by_layer[owner], None if index else attention_input)
        states[BEFORE_NORM] = x
        x = states[len(self._layers)] = self._norm(x)
        shape = *inputs.tokens.shape, -1
        return x.view(shape), tuple(states[layer].view(shape) for layer in hidden_layers)

    def logits(self, x: Tensor) -> Tensor:
        """`[1, nodes, vocab]` of states after the last norm."""
        if not x.shape[1]:
            return x.new_empty(*x.shape[:2], self._head.width)
        logits = self._head(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        if self._logits_divisor != 1:
            logits.div_(self._logits_divisor)
        return logits if self._logits_cap is None else logits.div_(self._logits_cap).tanh_().mul_(self._logits_cap)


class _FusedEntry:
    """The beginning of a draft head (`Entry`), with fused weights."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._token_norm, self._state_norm = (
            (lambda x: x) if norm is None else norm_call(norm) for norm in (entry.token_norm, entry.state_norm)
        )
        self._projection = None if entry.projection is None else fuse(entry.projection)

    def __call__(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """The first residual stream, and the input of the first layer's attention; None if that reads the stream."""
        normed_states = self._state_norm(states)
        normed_inputs = [self._token_norm(embedded), normed_states]
        joined_inputs = torch.cat(normed_inputs[::-1] if self._entry.states_first else normed_inputs, -1)
        if self._projection:
            return self._projection(joined_inputs), None
        return normed_states if self._entry.normed_residual else states, joined_inputs


def _computed(inputs: LayerInputs | None, tokens: Tensor, x: Tensor) -> Tensor | None:
    """Let the module compute what layers read beside the residual stream; `x` is the first residual stream."""
    if inputs is None:
        return None
    decoder = inputs.decoder
    return decoder.project_per_layer_inputs(x[None], decoder.get_per_layer_inputs(tokens))[0]


def why_not_fused(module: Any) -> str | None:
    """Why fused layers cannot stand in for a module: its family, layers, hooks or devices; None if they can."""
    if reason := why_not_known(module.config):
        return reason
    if {parameter.device for parameter in module.parameters()} != {module.device}:
        return "its weights are on several devices"
    is_wrapped = isinstance(module, PreTrainedModel) and module.config.get_text_config() is not module.config
    if not is_wrapped:
        return why_not_plain(module)
    head = module.get_output_embeddings()  # text does not pass through the encoders of images
    return why_not_plain(module, decoder_of(module)) or why_not_plain(module, head)
