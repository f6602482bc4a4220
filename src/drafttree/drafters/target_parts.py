"""What draft heads take from their target: its embedding, output projection and scaling of logits."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.models.module.released import place
from drafttree.models.quantization.quantized_embedding import QuantizedEmbedding
from drafttree.models.quantization.quantized_linear import QuantizedLinear


def projection(target: PreTrainedModel) -> nn.Linear:
    """Return the target's output projection (`lm_head`)."""
    return target.get_output_embeddings()  # pyright: ignore[reportReturnType]


def final_logits(target: PreTrainedModel, hidden_states: Tensor) -> Tensor:
    """Return the target's own logits `[..., vocab]` of hidden states `[..., hidden]` after its final norm."""
    return scaled_logits(target, projection(target)(hidden_states))


def scaled_logits(target: PreTrainedModel, outputs: Tensor) -> Tensor:
    """Return the target's own logits of what its output projection gave; see `logits_scaling`."""
    scale, bound = logits_scaling(target)
    logits = outputs * scale
    return torch.tanh(logits / bound) * bound if bound else logits


def logits_scaling(target: PreTrainedModel) -> tuple[float, float | None]:
    """Return the factor of the logits of a target's output projection, and the bound of the product, None for none.

    Some families scale logits (Granite, Cohere, Falcon-H1, HyperCLOVA X), Gemma bounds them.
    """
    config = target.config.get_text_config()
    scaling = getattr(config, "logits_scaling", None) or 1.0
    scale = scaling if config.model_type.startswith("hyperclovax") else 1 / scaling
    for name in ("logit_scale", "lm_head_multiplier", "output_multiplier"):
        scale *= getattr(config, name, None) or 1.0
    return scale, getattr(config, "final_logit_softcapping", None)


def embedding(target: PreTrainedModel) -> nn.Embedding:
    """Return the target's token embedding."""
    return target.get_input_embeddings()  # pyright: ignore[reportReturnType]


def projection_weight(target: PreTrainedModel) -> Tensor:
    """Return the weight `[vocab, hidden]` of the target's output projection, in the target's dtype."""
    return _in_dtype(projection(target), target)


def embedding_weight(target: PreTrainedModel) -> Tensor:
    """Return the weight `[vocab, hidden]` of the target's token embedding, in the target's dtype."""
    return _in_dtype(embedding(target), target)


def _in_dtype(module: Any, target: PreTrainedModel) -> Tensor:
    if isinstance(module, QuantizedLinear | QuantizedEmbedding):
        return module.dequantized().to(target.dtype)
    return module.weight.detach()


def last_layer(target: PreTrainedModel) -> int:
    """Return the index of the target's hidden state after its final norm, counted as in `Model.forward`."""
    return target.config.get_text_config().num_hidden_layers


def own_bytes(heads: Any, target: PreTrainedModel) -> int:
    """Return the bytes of the heads' parameters that are not shared with the target."""
    target_storage = {place(parameter) for parameter in target.parameters()}
    return sum(parameter.nbytes for parameter in heads.parameters() if place(parameter) not in target_storage)


def zero_hidden(target: PreTrainedModel) -> Tensor:
    """Return zeros `[1, 1, hidden]`, which a head reads while the target has no hidden state before the root."""
    hidden_size = target.config.get_text_config().hidden_size
    return torch.zeros(1, 1, hidden_size, dtype=target.dtype, device=target.device)
