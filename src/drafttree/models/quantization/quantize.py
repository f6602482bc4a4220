"""Replaces the linear layers of models by layers with weights of eight bits."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.quantization.int8_linear import Int8Linear, why_not_multiplied
from drafttree.models.quantization.linear_experts import KNOWN, linear_experts
from drafttree.models.quantization.quantized_embedding import QuantizedEmbedding, only_looks_up
from drafttree.models.quantization.quantized_linear import quantization


@torch.no_grad()
def quantize_int8(module: PreTrainedModel, *, head: bool = False) -> None:
    """Replace all linear layers of a model but its head by `Int8Linear`; on a CPU, stacked experts too.

    Args:
        module: the model.
        head: whether to call `quantize_head` too.

    Raises:
        ModelError: the model is quantised already, or has no linear layers but its head. Or a layer's weights cannot
            have eight bits on its device.
    """
    class_name = type(module).__name__
    if method := quantization(module):
        raise ModelError(f"{class_name} is quantised already ({method}); leave out quantize")
    for parent, name, experts in [*_stacked_experts(module)]:
        setattr(parent, name, linear_experts(experts))
    children = [(parent, name, child) for parent in module.modules() for name, child in parent.named_children()]
    own_head = module.get_output_embeddings()
    layers = [
        (parent, name, child) for parent, name, child in children if type(child) is nn.Linear and child is not own_head
    ]
    if not layers:
        raise ModelError(f"{class_name} has no linear layers to quantise but its head; leave out quantize")
    for _, name, layer in layers:
        if reason := why_not_multiplied(layer):
            raise ModelError(f"{name} of {class_name} {reason}; leave out quantize")
    layer = children = own_head = None
    while layers:  # each layer is dropped when it is replaced, so that weights are freed one by one
        parent, name, child = layers.pop()
        setattr(parent, name, Int8Linear(child))
    if head:
        quantize_head(module)


def _stacked_experts(module: PreTrainedModel) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """Experts that `linear_experts` splits, each with its parent module and its name in it.

    On other devices than CPUs there are none: one kernel multiplies the weights of all experts, but not in eight bits.
    """
    if module.device.type != "cpu":
        return
    for parent in module.modules():
        for name, child in parent.named_children():
            if type(child).__name__ in KNOWN:
                yield parent, name, child


@torch.no_grad()
def quantize_head(module: PreTrainedModel) -> None:
    """Quantise the head and, if they share a weight, the embedding; neither if one of them cannot be."""
    head: Any = module.get_output_embeddings()
    embedding: Any = module.get_input_embeddings()
    if type(head) is not nn.Linear or why_not_multiplied(head):
        return
    is_tied = embedding.weight is head.weight
    if is_tied and not only_looks_up(embedding):
        return
    quantized = Int8Linear(head)
    module.set_output_embeddings(quantized)
    if is_tied:
        module.set_input_embeddings(QuantizedEmbedding(quantized, embedding))
