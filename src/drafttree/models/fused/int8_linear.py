"""Linear layers whose weights have eight bits: a quarter of the memory of float32, and another model with its own text.

Only weights are quantised, with one scale per output. Activations keep the model's dtype: quantising them by one scale
for all rows of a pass would make a token's logits depend on the others in its pass.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError

INT8_MAX = 127
KERNEL_ROWS = 16
"""Rows up to which torch's kernel for bfloat16 is faster than converting the weight, as measured with AVX2."""
KERNEL_WIDTH = 32
"""The kernel reads past the end of weights whose inputs are no multiple of its vectors."""


class Int8Linear(nn.Module):
    """A linear layer with the weight of another, rounded to eight bits.

    Args:
        layer: the layer to be quantised; the products have its dtype.

    Attributes:
        quantized: int8 `[out, in]`. It is not called `weight`, so a model that reads a layer's weight itself fails
            instead of computing with the integers.
        scale: `[out]`, of the layer's dtype: what an integer stands for.
        bias: `[out]` or None.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.training = layer.training
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()
        scale = (weight.abs().amax(1) / INT8_MAX).to(layer.weight.dtype)
        scale = torch.where(scale == 0, torch.ones_like(scale), scale)
        rounded = (weight / scale.float()[:, None]).round_().clamp_(-INT8_MAX, INT8_MAX)
        self.quantized = nn.Parameter(rounded.to(torch.int8).contiguous(), requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def forward(self, x: Tensor) -> Tensor:
        return int8_product(x.flatten(0, -2), self.quantized, self.scale, self.bias).unflatten(0, x.shape[:-1])


def int8_product(x: Tensor, quantized: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    """The product of `[rows, in]` with a quantised weight, `[rows, out]`; other arguments as in `Int8Linear`.

    On a CPU few rows in bfloat16 are multiplied with the integers themselves. All others are multiplied with the
    converted weight, which takes memory for that weight and longer than a product without quantisation.
    """
    on_cpu = x.device.type == "cpu"
    small = len(x) <= KERNEL_ROWS and quantized.shape[1] % KERNEL_WIDTH == 0
    if on_cpu and small and x.dtype == torch.bfloat16:
        product = torch.ops.aten._weight_int8pack_mm(x.contiguous(), quantized, scale)
        return product if bias is None else product.add_(bias)
    dtype = torch.promote_types(x.dtype, torch.float32) if on_cpu else x.dtype
    weight = quantized.to(dtype).mul_(scale[:, None])
    return F.linear(x.to(dtype), weight, None if bias is None else bias.to(dtype)).to(x.dtype)


@torch.no_grad()
def quantize_int8(module: PreTrainedModel) -> None:
    """Replace all linear layers of a model but its head, which often is the embedding too, by `Int8Linear`.

    Raises:
        ModelError: the model is quantised already, or it has no linear layers but its head.
    """
    kind = type(module).__name__
    if method := quantization(module):
        raise ModelError(f"{kind} is quantised already ({method}); leave out quantize")
    parts = [(part, name, child) for part in module.modules() for name, child in part.named_children()]
    head = module.get_output_embeddings()
    layers = [(part, name, child) for part, name, child in parts if type(child) is nn.Linear and child is not head]
    if not layers:
        raise ModelError(f"{kind} has no linear layers to quantise but its head; leave out quantize")
    for part, name, child in layers:
        setattr(part, name, Int8Linear(child))


def quantization(module: nn.Module) -> str | None:
    """How the weights of a model are quantised, None if they are not."""
    if any(isinstance(part, Int8Linear) for part in module.modules()):
        return "int8"
    return quantization_method(getattr(getattr(module, "config", None), "quantization_config", None))


def quantization_method(settings: object) -> str | None:
    """The name of the method in the `quantization_config` of a model, None without one."""
    if not settings:
        return None
    found = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(found, "value", found) or "by a method it does not name")
