"""Linear layers whose weight is in blocks of a few inputs each, as the bytes of the file."""

import torch
from torch import Tensor, nn

from drafttree.models.quantization.quantized_linear import ROWS_AT_ONCE, QuantizedLinear, dequantized_rows


class BlockLinear(QuantizedLinear):
    """A linear layer whose weight is in blocks.

    On a CPU, drafttree-native multiplies the blocks and rounds activations to eight bits. The module itself converts
    whole weights and does not round activations. Passes of drafttree-native are compared with it.

    Args:
        layer: the layer that it replaces; its weight is not read.
        quantized: the weight, uint8 `[out, bytes]`.
        block_name: name of the blocks in `drafttree.models.quantization.blocks.FORMATS`.

    Attributes:
        blocks: name of the blocks.
    """

    def __init__(self, layer: nn.Linear, quantized: Tensor, block_name: str) -> None:
        super().__init__(layer)
        self.quantized = nn.Parameter(quantized, requires_grad=False)
        self.register_buffer("scale", None)
        self.method = self.blocks = block_name

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, blocks={self.blocks}"

    def product(self, x: Tensor) -> Tensor:
        weight_chunks = self.quantized.split(ROWS_AT_ONCE)
        weights = (dequantized_rows(weight_chunk, None, self.blocks).to(x.dtype) for weight_chunk in weight_chunks)
        return torch.cat([nn.functional.linear(x, weight) for weight in weights], -1)
