"""The backend that runs families like Llama and GPT-NeoX on fused layers: the module's function with less in between.

A pass over a small model is mostly the price of calling it: a transformers layer runs some thirty operations under a
dozen Python frames. Here a layer is a dozen operations on fused weights (query, key and value; gate and up). They are
the module's own: its parameters become views of them, and the module keeps working.
`drafttree.models.validation.select_backend` compares the two before it prefers this one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.fused.fused_layers import (
    FusedLayer,
    LlamaLayer,
    NeoXLayer,
    PassContext,
    RotaryAngles,
    key_owners,
    layout_of,
    rms_norm,
)
from drafttree.models.fused.fused_linear import fuse
from drafttree.models.fused.gemma4_layer import Gemma4Layer
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.module.long_rope import long_frequencies_of, ropes
from drafttree.models.module.plain_module import why_not_plain
from drafttree.models.segment import Output, Segment, forward_in_groups, join, split, split_layers

LLAMAS = {
    "gemma3_text",
    "gemma4_text",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "smollm3",
}
LAYERS = {"gemma4_text": Gemma4Layer, "gpt_neox": NeoXLayer}
"""The layers of families that are unlike Llama."""
STATIC_ROPES = {"default", "linear", "llama3", "proportional", "yarn"}
ROPES = STATIC_ROPES | {"longrope"}


class FusedBackend:
    """Runs fused layers. See `drafttree.models.base.Backend` for the protocol.

    Args:
        module: a model of which `why_not_fused` says nothing.

    Attributes:
        layers: the fused layers.
        layout: layout of its KV caches.
        spans: how far back layers attend, each value once.
        has_long_rope: whether rotary embeddings have other frequencies beyond their original context.
        empty: an empty tensor of the model's dtype, on its device.
    """

    exact_text = False
    lossy_window = None
    shares_passes = True
    packed_nbytes = 0
    fallback_reason: str | None = None

    def __init__(self, module: PreTrainedModel) -> None:
        decoder: Any = module.get_decoder()
        config = module.config
        is_llama = config.model_type in LLAMAS
        self.device = module.device
        self._embed: Any = module.get_input_embeddings()
        self.empty = torch.empty(0, dtype=module.dtype, device=module.device)
        layer = LAYERS.get(config.model_type, LlamaLayer)
        self.layers: list[FusedLayer] = [layer(block, config) for block in decoder.layers]
        self._owners = key_owners(decoder.layers)
        self.layout = layout_of([(layer.key_heads, layer.width) for layer in self.layers], self._owners)
        self._decoder = decoder if getattr(decoder, "hidden_size_per_layer_input", None) else None
        self._norm = rms_norm(decoder.norm) if is_llama else decoder.final_layer_norm
        self._head = fuse(module.get_output_embeddings())
        self._angles = {
            layer.kind: RotaryAngles(decoder.rotary_emb, self.empty.dtype, layer.kind.layer_type)
            for layer in self.layers
        }
        long = long_frequencies_of(decoder.rotary_emb) if is_llama else None
        self._long_angles = self._angles
        if long is not None:
            angles = RotaryAngles(decoder.rotary_emb, self.empty.dtype, frequencies=long)
            self._long_angles = dict.fromkeys(self._angles, angles)
        self.spans = tuple({kind.span for kind in self._angles})
        multiplier = embedding_multiplier(decoder)
        self._embedding_scale = 1.0 if multiplier is None else multiplier
        self._logits_divisor, self._logits_cap = logits_divisor(config), logits_cap(config)

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self.layout, capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        if not segments:
            return []
        if self.has_long_rope and len(segments) > 1:
            run = partial(self._run, hidden_layers=hidden_layers)
            return forward_in_groups(segments, lambda segment: segment.cache.long_rope, run)
        return self._run(segments, hidden_layers)

    @property
    def is_uniform(self) -> bool:
        """Whether all layers have heads of one shape, and keys and values of their own."""
        shapes = {(layer.key_heads, layer.groups, layer.width) for layer in self.layers}
        return len(shapes) == 1 and len(self.layout.slots) == len(self.layers)

    @property
    def has_long_rope(self) -> bool:
        return self._long_angles is not self._angles

    def _run(self, segments: Sequence[Segment], hidden_layers: tuple[int, ...]) -> list[Output]:
        """A pass over segments that have the same rotary frequencies."""
        inputs = PassInputs.of(segments, self.empty)
        x, hidden = self.run_layers(inputs, hidden_layers, segments[0].cache.long_rope)
        for segment in segments:
            segment.cache.grow(segment.positions)
        return self.outputs_of(segments, x, hidden)

    def outputs_of(self, segments: Sequence[Segment], x: Tensor, hidden: tuple[Tensor, ...]) -> list[Output]:
        """The outputs of a pass by segment, given what `run_layers` returns."""
        parts = zip(split(x, [segment.nodes for segment in segments]), segments, strict=True)
        scored = [segment.wanted_of(part) for part, segment in parts]
        logits = split(self.logits(join(scored)), [part.shape[1] for part in scored])
        return [Output(*each) for each in zip(logits, split_layers(segments, hidden), strict=True)]

    def run_layers(
        self, inputs: PassInputs, hidden_layers: tuple[int, ...], long_rope: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The states after the last norm and those of the layers asked for, each `[1, nodes, hidden]`.

        Args:
            inputs: of the pass.
            hidden_layers: the layers asked for.
            long_rope: whether the long frequencies of LongRoPE hold.
        """
        x = self._embed(inputs.tokens).flatten(0, 1)
        if self._embedding_scale != 1:
            x = x * self._embedding_scale
        layer_inputs = None
        if self._decoder is not None:
            of_tokens = self._decoder.get_per_layer_inputs(inputs.tokens)
            layer_inputs = self._decoder.project_per_layer_inputs(x[None], of_tokens)[0]
        contexts = {
            kind: PassContext(*angles.of(inputs.positions), inputs.attention(kind.span, kind.groups), layer_inputs)
            for kind, angles in (self._long_angles if long_rope else self._angles).items()
        }
        states: dict[int, Tensor] = {}
        rows_of = dict(zip(self.layout.slots, inputs.rows, strict=True))
        for index, (layer, owner) in enumerate(zip(self.layers, self._owners, strict=True)):
            if index in hidden_layers:
                states[index] = x
            x = layer.forward(x, contexts[layer.kind], rows_of[owner])
        x = states[len(self.layers)] = self._norm(x)
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


def embedding_multiplier(decoder: Any) -> float | None:
    """What a decoder multiplies embeddings with (Granite), None for one that does not."""
    multiplier = getattr(decoder, "embedding_multiplier", None)
    return None if multiplier is None else float(multiplier)


def logits_divisor(config: PreTrainedConfig) -> float:
    """What a model divides its logits by (Granite)."""
    return float(config.logits_scaling) if config.model_type == "granite" else 1.0


def logits_cap(config: PreTrainedConfig) -> float | None:
    """What no logit of a model goes beyond (Gemma 4), None for no such bound."""
    return getattr(config, "final_logit_softcapping", None)


def why_not_known(config: PreTrainedConfig) -> str | None:
    """What a config has by which fused layers are not those of its models; None if they are."""
    if config.model_type not in LLAMAS | {"gpt_neox"}:
        return f"layers of the family {config.model_type} are not known"
    if getattr(config, "attn_logit_softcapping", None):
        return "its config has attn_logit_softcapping"
    if changing := {str(rope.get("rope_type")) for rope in ropes(config)} - ROPES:
        return f"rotary embeddings of the type {min(changing)} are not known"
    return None


def why_not_fused(module: PreTrainedModel) -> str | None:
    """Why fused layers cannot stand in for a module: its family, layers, hooks or devices; None if they can."""
    if reason := why_not_known(module.config):
        return reason
    if {parameter.device for parameter in module.parameters()} != {module.device}:
        return "its weights are on several devices"
    return why_not_plain(module)
