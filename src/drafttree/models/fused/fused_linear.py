"""Linear layers of one input as one product; their weights become views of one tensor."""

from typing import Any

import torch
from torch import Tensor

from drafttree.models.quantization.int8_linear import Int8Linear, int8_product


class FusedLinear:
    """One or several linear layers of one input as one product.

    Args:
        layers: their parameters become views of the fused ones.

    Attributes:
        width: number of outputs of all layers together.
    """

    def __init__(self, *layers: Any) -> None:
        self._bias = _join([layer.bias for layer in layers]) if layers[0].bias is not None else None
        self._weight = _join([layer.weight for layer in layers]).t()
        self.width = self._weight.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)


class FusedInt8Linear:
    """As `FusedLinear`, of layers with weights of eight bits."""

    def __init__(self, *layers: Int8Linear) -> None:
        self._bias = _join([layer.bias for layer in layers]) if layers[0].bias is not None else None
        self._weight = _join([layer.quantized for layer in layers]), _join([layer.scale for layer in layers])
        self.width = len(self._weight[0])

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        product = int8_product(x, *self._weight)
        return product if self._bias is None else product.add_(self._bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        return self(x).add_(residual)


FusedProduct = FusedLinear | FusedInt8Linear


def fuse(*layers: Any) -> FusedProduct:
    """Linear layers of one input as one product; their own weights become views of the fused one."""
    return FusedInt8Linear(*layers) if isinstance(layers[0], Int8Linear) else FusedLinear(*layers)


def multiplies_bfloat16_fast(device: torch.device) -> bool:
    """Whether a device has instructions for products in bfloat16; others convert every value first."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type != "cpu" or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def _join(parts: list[Any]) -> Tensor:
    """Stack parameters along their first dimension, and make each a view of its part.

    The result is row-major or column-major as they are. Parameters that were joined before, for another backend of the
    same module, are not copied again.
    """
    if len(parts) == 1:
        return parts[0]
    if _are_joined(parts):
        return parts[0].data.as_strided((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].stride())
    is_input_major = parts[0].ndim == 2 and not parts[0].is_contiguous()
    with torch.inference_mode(parts[0].is_inference()):  # parameters made in that mode stay usable only in it
        tensors = [parameter.data for parameter in parts]
        fused_parameter = torch.cat([*map(torch.t, tensors)], 1).t() if is_input_major else torch.cat(tensors)
        for parameter, view in zip(parts, fused_parameter.split([*map(len, parts)]), strict=True):
            parameter.data = view
    return fused_parameter


def _are_joined(parts: list[Tensor]) -> bool:
    """Whether parameters are consecutive rows of one tensor."""
    first_parameter = parts[0]
    address = parts[0].data_ptr()
    for parameter in parts:
        if (parameter.data_ptr(), parameter.stride()) != (address, first_parameter.stride()):
            return False
        address += len(parameter) * first_parameter.stride(0) * first_parameter.element_size()
    return len({parameter.untyped_storage().data_ptr() for parameter in parts}) == 1
