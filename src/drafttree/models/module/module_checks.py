"""Whether a module is complete, where its inputs go, and how wide its logits are.

Layers may be quantised, and accelerate may keep weights elsewhere, so none of this is read from the weights alone.
"""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError

DYNAMIC_LAYERS = "torch.ao.nn.quantized.dynamic"


def check_module(module: PreTrainedModel) -> None:
    """Refuse a module that cannot compute logits.

    Raises:
        ModelError: it has no head, weights without values, weights on several devices, or layers whose output for one
            token depends on the other tokens of a pass.
    """
    name = type(module).__name__
    if module.get_output_embeddings() is None:
        raise ModelError(f"{name} has no language-model head; load it with AutoModelForCausalLM")
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    if any(type(part).__module__.startswith(DYNAMIC_LAYERS) for part in module.modules()):
        kind = "dynamically quantised layers, which round all tokens of a pass together"
        raise ModelError(f"{name} cannot be verified in a tree: it has {kind}; quantise its weights only")
    empty = [key for key, tensor in tensors.items() if tensor.is_meta]
    if empty and not any(map(_execution_device, module.modules())):
        raise ModelError(f"{name} is loaded in part: {empty[0]} has no values (it is on the meta device); load it anew")
    devices = sorted({str(tensor.device) for tensor in tensors.values() if not tensor.is_meta})
    if len(devices) > 1:
        raise ModelError(f"{name} lies on several devices ({', '.join(devices)}); move all of it to one of them")


def input_device(module: PreTrainedModel) -> torch.device:
    """The device a module's tokens have to be on, which is not that of weights accelerate brings for every pass."""
    return _execution_device(module.get_input_embeddings()) or module.device


def decoder_of(module: PreTrainedModel) -> Any:
    """The layers without the head. Llama 4 gives itself when it is asked for them, and ModernBERT its head."""
    parts = (module.get_decoder(), module.base_model, getattr(module, "model", None))
    return next((part for part in parts if isinstance(part, PreTrainedModel) and part is not module), module)


def logits_width(module: PreTrainedModel) -> int:
    """The size of the vocabulary; the weight of a quantised head may have another shape, or be none."""
    width = getattr(module.get_output_embeddings(), "out_features", None)
    return width or module.config.get_text_config().vocab_size


def _execution_device(part: nn.Module) -> torch.device | None:
    """The device accelerate computes a part on, None where it has no say."""
    device = getattr(getattr(part, "_hf_hook", None), "execution_device", None)
    return None if device is None else torch.device(device)
