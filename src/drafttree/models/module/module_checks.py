"""Properties of a module, and whether it can be verified in a tree, read from its config and its layers.

Weights alone do not tell: layers may be quantised, and accelerate may keep weights on other devices.
"""

from typing import Any

import torch
from torch import nn
from transformers import Cache, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.module.adapters import activated_adapter
from drafttree.models.module.alibi import BUILDERS, has_alibi
from drafttree.models.module.long_rope import ropes

TREE_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
STATELESS_LAYERS = TREE_LAYERS | {"moe", "mlp"}
HYBRID_LAYERS = {"linear_attention", "conv", "mamba", "hybrid", "hybrid_sliding", "moe", "mlp"}
"""Types of layers of hybrid models beside attention; recurrent ones run level by level (`recurrent_layers`)."""
MASKED_FAMILIES = {"biogpt", "bloom", "codegen", "falcon", "gpt_neox_japanese", "gptj", "mpt", "nemotron", "stablelm"}
MASKED_FAMILIES |= {"xglm"}
"""Model types whose layers call no attention function of ours, but add a given mask to their scores.

A model type belongs here if `drafttree support --only NAME` finds it exact once it is added.
"""
DYNAMIC_LAYERS = "torch.ao.nn.quantized.dynamic"


def check_module(module: PreTrainedModel) -> None:
    """Refuse a module that cannot compute logits.

    Raises:
        ModelError: the module has no head, weights without values, or weights on several devices. Or a layer's output
            for a token depends on the other tokens of a pass, or layers are not numbered from 0.
    """
    name = type(module).__name__
    if module.get_output_embeddings() is None:
        raise ModelError(f"{name} has no language-model head; load it with AutoModelForCausalLM")
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    if any(type(submodule).__module__.startswith(DYNAMIC_LAYERS) for submodule in module.modules()):
        obstacle = "dynamically quantised layers, which round all tokens of a pass together"
        raise ModelError(f"{name} cannot be verified in a tree: it has {obstacle}; quantise its weights only")
    if any(map(_keeps_outliers, module.modules())):
        obstacle = "layers of bitsandbytes that treat a column otherwise if any token of a pass has an outlier in it"
        advice = "load it with BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0)"
        raise ModelError(f"{name} cannot be verified in a tree: it has {obstacle}; {advice}")
    if adapter := next(filter(None, map(activated_adapter, module.modules())), None):
        obstacle = (
            f"an aLoRA adapter ({adapter!r}), which peft's wrapper switches on where a text has its invocation tokens"
        )
        raise ModelError(f"{name} cannot be verified in a tree: it has {obstacle}; disable it, or set another adapter")
    meta_names = [key for key, tensor in tensors.items() if tensor.is_meta]
    if meta_names and not any(map(_execution_device, module.modules())):
        raise ModelError(
            f"{name} is loaded in part: {meta_names[0]} has no values (it is on the meta device); load it anew"
        )
    devices = sorted({str(tensor.device) for tensor in tensors.values() if not tensor.is_meta})
    if len(devices) > 1:
        raise ModelError(f"{name} is on several devices ({', '.join(devices)}); move all of it to one of them")
    numbers = _layer_numbers(module)
    if sorted(numbers) != [*range(len(numbers))]:
        raise ModelError(
            f"{name} has {len(numbers)} layers, but the layer_idx of their attention is {numbers}; if layers were "
            "removed, set each layer_idx to the layer's new place"
        )


def _layer_numbers(module: PreTrainedModel) -> list[int]:
    """The number by which a KV cache knows each layer: its attention's `layer_idx`, or its index without one."""
    blocks = getattr(module.get_decoder(), "layers", None)
    if not isinstance(blocks, nn.ModuleList):
        return []
    return [getattr(getattr(block, "self_attn", None), "layer_idx", index) for index, block in enumerate(blocks)]


def _keeps_outliers(layer: nn.Module) -> bool:
    """Whether a layer multiplies columns with outliers unquantised (LLM.int8, Dettmers et al. 2022).

    These columns depend on all rows of a pass. A probe finds the effect in float32 only, since in bfloat16 it is as
    small as rounding.
    """
    if not type(layer).__module__.startswith("bitsandbytes"):
        return False
    return bool(getattr(getattr(layer, "state", None), "threshold", 0.0))


def incompatibility(module: PreTrainedModel) -> str | None:
    """The kind of layers that keep a model from being verified in a tree, None if there are none."""
    if module.config.is_encoder_decoder:
        return "encoder-decoder (cross-attention) layers"
    config = module.config.get_text_config()
    if getattr(config, "num_hidden_layers", 1) < 1:
        return "no layers"
    is_hybrid = bool(recurrent_layers(module))
    known_types = TREE_LAYERS | HYBRID_LAYERS if is_hybrid else STATELESS_LAYERS
    layer_types = set(getattr(config, "layer_types", None) or ())
    foreign_types = ", ".join(sorted(layer_types - known_types))
    is_stateless = bool(layer_types) and layer_types <= STATELESS_LAYERS  # some models of Granite 4 are
    if getattr(module, "_is_stateful", False) and not (is_hybrid or is_stateless):
        needs_newer_transformers = _with_convolutions(module) and not hasattr(Cache, "get_conv_state")
        reason = (
            "need transformers 5.21 or later"
            if needs_newer_transformers
            else "keep their states where no tree can branch"
        )
        return f"recurrent layers ({foreign_types or config.model_type}) that {reason}; use the module's own generate"
    if foreign_types:
        return f"{foreign_types} layers, whose states cannot be kept by node; use the module's own generate"
    if has_alibi(config) and config.model_type not in BUILDERS:
        return f"ALiBi biases that {config.model_type} adds by the order of the cache; use the module's own generate"
    if any(rope.get("rope_type") == "dynamic" for rope in ropes(config)):
        return "rotary embeddings that change with the length (rope_type 'dynamic')"
    if getattr(config, "attn_logit_softcapping", None) and config._attn_implementation == "sdpa":
        return "an sdpa attention that leaves the bound on its scores out; load it with attn_implementation='eager'"
    decoder = decoder_of(module)
    if not (_knows_attention_functions(module) or takes_mask(module)):
        return f"attention layers ({config.model_type}) outside transformers' AttentionInterface"
    layers: dict[str, nn.Module] = dict(decoder.named_modules())
    if any(getattr(layer, "is_causal", True) is False for layer in layers.values()):
        return "bidirectional attention layers"
    tables = [layer for name, layer in layers.items() if name.endswith("position_embeddings")]
    if any(getattr(table, "padding_idx", None) is not None for table in tables):
        return "position embeddings that leave room for padding"
    return None


def takes_mask(module: PreTrainedModel) -> bool:
    """Whether a module gets the tree as an attention mask, since its layers do not call our attention function."""
    return module.config.model_type in MASKED_FAMILIES or (
        bool(recurrent_layers(module)) and not _knows_attention_functions(module)
    )


def _knows_attention_functions(module: PreTrainedModel) -> bool:
    """Whether layers pass all arguments on to transformers' attention functions; few hybrids declare it."""
    decoder = decoder_of(module)
    is_hybrid = getattr(module, "_is_stateful", False) or bool(recurrent_layers(module))
    return decoder._supports_attention_backend or (is_hybrid and decoder._can_set_attn_implementation())


def recurrent_layers(module: PreTrainedModel) -> dict[str, nn.Module]:
    """The recurrent layers of a module by name: those with a convolution and a place in the cache."""
    # before 5.21, recurrent layers of transformers shared no cache
    return _with_convolutions(module) if hasattr(Cache, "get_conv_state") else {}


def _with_convolutions(module: PreTrainedModel) -> dict[str, nn.Module]:
    return {
        name: submodule
        for name, submodule in decoder_of(module).named_modules()
        if hasattr(submodule, "layer_idx") and any(isinstance(child, nn.Conv1d) for child in submodule.children())
    }


def decoder_of(module: PreTrainedModel) -> Any:
    """The decoder without the head. `get_decoder` returns the model itself for Llama 4, and the head for ModernBERT."""
    for candidate in (module.get_decoder(), module.base_model, getattr(module, "model", None)):
        if isinstance(candidate, PreTrainedModel) and candidate is not module:
            return candidate
    return module


def input_device(module: PreTrainedModel) -> torch.device:
    """The device for a module's token ids. Accelerate may keep the weights on another one."""
    return _execution_device(module.get_input_embeddings()) or module.device


def _execution_device(submodule: nn.Module) -> torch.device | None:
    """The device on which accelerate runs a submodule, None without accelerate."""
    device = getattr(getattr(submodule, "_hf_hook", None), "execution_device", None)
    return None if device is None else torch.device(device)


def logits_width(module: PreTrainedModel) -> int:
    """The width of the logits. The head's weight does not tell it, since it may be quantised to another shape."""
    width = getattr(module.get_output_embeddings(), "out_features", None)
    return width or module.config.get_text_config().vocab_size
