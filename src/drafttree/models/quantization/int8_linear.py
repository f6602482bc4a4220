"""Linear layers with weights of eight bits, which take less memory and time, but make another model with other texts.

A weight has one scale per output. The loss depends on the model. The embedded target's perplexity changes by
-0.004 +- 0.010 % (143,080 tokens of the books' test set, activations not rounded). That of Qwen2.5-Coder 0.5B changes
by 0.81 +- 0.04 % (71,540 tokens of WikiText-2, activations in eight bits too). The head of a target is not quantised,
since that would cost another 0.14 +- 0.015 %. The head of a drafter is, since drafts change no text.

On a CPU, drafttree-native runs such layers, and rounds activations to eight bits too (`native/src/panels.h`). The
module itself converts whole weights, which is slower, and does not round activations. Passes of drafttree-native are
compared with it.

On CUDA, activations are rounded to sixteen bits, each row by its largest value. The integers are multiplied and added
exactly, so a token's logits do not depend on the others in its pass. Eight bits would be faster. But on CUDA, attention
adds up the rows of a tree in another order than those of a chain. With eight bits, a difference in the last place of a
sum could round to integers far apart.
"""

import torch
from torch import Tensor, nn

from drafttree.models.quantization.quantized_linear import ROWS_AT_ONCE, QuantizedLinear, rounds_activations

INT8_MAX = 127
MIDDLE = 128
"""The unsigned byte that represents 0 in activations."""
LARGEST = 256 * INT8_MAX
"""The largest activation of sixteen bits: 256 * upper byte + lower byte, both from -128 to 127."""
SHIFT = float(2**23 + 256 * MIDDLE + MIDDLE)
CUDA_ROWS, CUDA_MULTIPLE = 32, 8
"""On CUDA, the fewest rows of torch's product of integers, and the number that divides all its sizes."""


class Int8Linear(QuantizedLinear):
    """A linear layer with the weight of another, rounded to eight bits.

    Args:
        layer: the layer to be quantised; the products have its dtype.

    Attributes:
        quantized: the weight, int8 `[out, in]`.
        scale: float32 `[out]` factors of the integers.
    """

    method = "int8"
    scale: Tensor  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        weight = layer.weight.detach()
        quantized = torch.empty_like(weight, dtype=torch.int8, memory_format=torch.contiguous_format)
        scale = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
        row_chunks = (tensor.split(ROWS_AT_ONCE) for tensor in (weight, quantized, scale))
        for rows, integers, units in zip(*row_chunks, strict=True):
            numbers = rows.float()
            units.copy_(numbers.abs().amax(1) / INT8_MAX)
            numbers = numbers / torch.where(units == 0, 1.0, units)[:, None]
            integers.copy_(numbers.round_().clamp_(-INT8_MAX, INT8_MAX))
        self.quantized = nn.Parameter(quantized, requires_grad=False)
        # a buffer, since transformers would take a parameter's dtype for the model's
        self.register_buffer("scale", scale)

    def product(self, x: Tensor) -> Tensor:
        return int8_product(x, self.quantized, self.scale)


def int8_product(x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """The product of `x` `[rows, in]` with a weight, `[rows, out]` in the dtype of `x`."""
    if x.is_cuda and rounds_activations():
        return rounded_product(x, quantized, scale)
    return nn.functional.linear(x, (quantized * scale[:, None]).to(x.dtype))


def rounded_product(x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """The same product with rows rounded to sixteen bits, in sums of integers."""
    float_rows = x if x.dtype == torch.float32 else x.float()
    unit = float_rows.abs().amax(-1, keepdim=True) / LARGEST
    # rounded, since a float this large has no place behind the point; its lowest bytes are the integer's.
    # A row of zeros has some integers or other, and the unit 0
    shifted_integers = (float_rows / unit).add_(SHIFT).view(torch.int32)
    nodes = len(x)
    unsigned_bytes = torch.empty((2 * len(x), x.shape[1]), dtype=torch.uint8, device=x.device)
    unsigned_bytes[:nodes] = shifted_integers
    unsigned_bytes[nodes:] = shifted_integers >> 8
    signed_bytes = unsigned_bytes.to(torch.int16).sub_(MIDDLE).to(torch.int8)
    count = max(len(signed_bytes), CUDA_ROWS)
    padded_bytes = nn.functional.pad(signed_bytes, (0, 0, 0, count - len(signed_bytes) + -count % CUDA_MULTIPLE))
    product = torch.ops.aten._int_mm(padded_bytes, quantized.t())[: len(signed_bytes)].float().mul_(scale)
    return product[:nodes].add_(product[nodes:], alpha=256).mul_(unit).to(x.dtype)


def why_not_multiplied(layer: nn.Linear) -> str | None:
    """Why a linear layer cannot have weights of eight bits on its device, None if it can."""
    device = layer.weight.device.type
    sizes = (layer.in_features, layer.out_features)
    if device not in ("cpu", "cuda"):
        return f"is on {device}, where no kernel multiplies int8 weights"
    if device == "cuda" and any(size % CUDA_MULTIPLE for size in sizes):
        return (
            f"has {sizes[0]} inputs and {sizes[1]} outputs, and on CUDA int8 weights need multiples of {CUDA_MULTIPLE}"
        )
    return None
