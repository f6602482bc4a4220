"""Linear layers that keep their weight packed alone: half the memory of a weight with a packed copy beside it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.models.fused.shared_weight import SharedWeightLinear

PACKED_FOR = 8
"""Rows that packed weights are laid out for."""


class PackedLinear(SharedWeightLinear):
    """A linear layer that keeps its weight packed alone, and unpacks it for a state dict.

    Args:
        layer: the layer that it stands in for, of a dtype that is packed.

    Attributes:
        packed: the weight.
    """

    shared = ("packed",)

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        self.take({"weight": layer.weight.detach()})

    def product(self, x: Tensor) -> Tensor:
        return packed_product(x, self.packed)

    def own(self) -> dict[str, Tensor]:
        return {"weight": self.packed.detach().to_dense()[self.outputs]}

    def take(self, parts: Mapping[str, Tensor]) -> None:
        self.packed = nn.Parameter(pack(parts["weight"]), requires_grad=False)


def pack(weight: Tensor) -> Tensor:
    """oneDNN's copy of a weight `[out, in]`."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)


def packed_product(x: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of `[rows, in]` with a packed weight."""
    return torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, "none", [], "")


@torch.no_grad()
def pack_linear(module: PreTrainedModel) -> None:
    """Replace all linear layers of a model but its head, which often is the embedding too, by `PackedLinear`.

    The other weights are copied: as they are loaded they are parts of a mapped file, which stays in memory as a whole.
    """
    head = module.get_output_embeddings()
    parts = [(part, name, child) for part in module.modules() for name, child in part.named_children()]
    for part, name, child in parts:
        if type(child) is nn.Linear and child is not head:
            setattr(part, name, PackedLinear(child))
            child.weight = nn.Parameter(child.weight.new_empty(0))  # `parts` holds the layer until all are packed
    for parameter in module.parameters():
        if not parameter.is_mkldnn:
            parameter.data = parameter.data.clone()
