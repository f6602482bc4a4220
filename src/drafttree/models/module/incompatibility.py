"""The layers that keep a model from being verified in a tree, from its config and modules."""

from inspect import signature

from torch import nn
from transformers import PreTrainedModel

from drafttree.models.module.long_rope import ropes
from drafttree.models.module.module_checks import decoder_of
from drafttree.models.module.recurrent import recurrent_layers

TREE_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
HYBRID_LAYERS = {"linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding", "moe", "mlp"}
"""Kinds of layers of hybrids beside attention; the recurrent ones run level by level (`recurrent_layers`)."""
RESTARTING_FAMILIES = {"jamba", "zamba"}
"""Model types whose recurrent layers forget their state when they are given several tokens."""
MASKED_FAMILIES = {"biogpt", "codegen", "falcon", "gpt_neox_japanese", "gptj", "nemotron", "stablelm", "xglm"}
"""Model types whose layers know no other attention functions, but only add a given mask to their scores.

One that `drafttree support --only NAME` finds exact when it is added here belongs here.
"""


def takes_mask(module: PreTrainedModel) -> bool:
    """Whether a module is given the tree as an attention mask, since its layers know no other attention functions."""
    known = decoder_of(module)
    return module.config.model_type in MASKED_FAMILIES or (
        bool(recurrent_layers(module)) and not known._supports_attention_backend
    )


def incompatibility(module: PreTrainedModel) -> str | None:
    """The layers that keep a model from being verified in a tree, None if there are none."""
    if module.config.is_encoder_decoder:
        return "encoder-decoder (cross-attention) layers"
    config = module.config.get_text_config()
    if getattr(config, "num_hidden_layers", 1) < 1:
        return "no layers"
    is_hybrid = bool(recurrent_layers(module)) and "past_key_values" in signature(module.forward).parameters
    known = TREE_LAYERS | HYBRID_LAYERS if is_hybrid else TREE_LAYERS
    types = set(getattr(config, "layer_types", None) or ())
    foreign = ", ".join(sorted(types - known))
    only_attends = bool(types) and types <= TREE_LAYERS  # as some models of Granite 4
    if getattr(module, "_is_stateful", False) and not (is_hybrid or only_attends):
        return f"recurrent layers ({foreign or config.model_type})"
    if foreign:
        return f"{foreign} layers"
    if config.model_type in RESTARTING_FAMILIES:
        return f"recurrent layers that cannot read on ({config.model_type})"
    if getattr(config, "alibi", False) or config.model_type in {"bloom", "mpt"}:
        return "ALiBi attention layers, whose scores depend on the order of the cache"
    if any(rope.get("rope_type") == "dynamic" for rope in ropes(config)):
        return "rotary embeddings that change with the length (rope_type 'dynamic')"
    if getattr(config, "attn_logit_softcapping", None) and config._attn_implementation == "sdpa":
        return "an sdpa attention that leaves the bound on its scores out; load it with attn_implementation='eager'"
    text_part = decoder_of(module)
    if not (text_part._supports_attention_backend or takes_mask(module)):
        return f"attention layers ({config.model_type}) outside transformers' AttentionInterface"
    layers: dict[str, nn.Module] = dict(text_part.named_modules())
    if any(getattr(layer, "is_causal", True) is False for layer in layers.values()):
        return "bidirectional attention layers"
    return _padded_positions(layers)


def _padded_positions(layers: dict[str, nn.Module]) -> str | None:
    tables = [layer for name, layer in layers.items() if name.endswith("position_embeddings")]
    if any(getattr(table, "padding_idx", None) is not None for table in tables):
        return "position embeddings that leave room for padding"
    return None
