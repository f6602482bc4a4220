"""Linear layers of one input as one product; their weights become views of one tensor."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from drafttree.models.quantization.int8_linear import Int8Linear, int8_product


class JoinedWeights(NamedTuple):
    """The parameters of linear layers of one input, joined.

    Attributes:
        weight: `[out, in]`.
        bias: `[out]`, None for none.
        scale: float32 `[out]` factors of rows of eight bits, None for other weights.
    """

    weight: Tensor
    bias: Tensor | None
    scale: Tensor | None = None

    @classmethod
    def of(cls, *layers: Any) -> "JoinedWeights":
        """Join the parameters of layers, which become views of the joined ones."""
        bias = _join([layer.bias for layer in layers]) if layers[0].bias is not None else None
        if isinstance(layers[0], Int8Linear):
            quantized = _join([layer.quantized for layer in layers])
            return cls(quantized, bias, _join([layer.scale for layer in layers]))
        return cls(_join([layer.weight for layer in layers]), bias)


class FusedLinear:
    """One or several linear layers of one input as one product.

    Args:
        layers: their parameters become views of the fused ones.

    Attributes:
        width: number of outputs of all layers together.
    """

    def __init__(self, *layers: Any) -> None:
        weight, self._bias, _ = JoinedWeights.of(*layers)
        self._weight = weight.t()
        self.width = self._weight.shape[1]

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)


class FusedInt8Linear:
    """`FusedLinear` for layers with weights of eight bits."""

    def __init__(self, *layers: Int8Linear) -> None:
        self._weight, self._bias, scale = JoinedWeights.of(*layers)
        assert scale is not None
        self._scale = scale
        self.width = len(self._weight)

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        product = int8_product(x, self._weight, self._scale)
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


def _join(parameters: list[Any]) -> Tensor:
    """Stack parameters along their first dimension, and make each a view of the result.

    The result is row-major or column-major as the parameters are. Parameters that were joined before, for another
    backend of the same module, are not copied again.
    """
    if len(parameters) == 1:
        return parameters[0]
    if _are_joined(parameters):
        return parameters[0].data.as_strided(
            (sum(map(len, parameters)), *parameters[0].shape[1:]), parameters[0].stride()
        )
    is_input_major = parameters[0].ndim == 2 and not parameters[0].is_contiguous()
    with torch.inference_mode(parameters[0].is_inference()):  # parameters made in inference mode stay usable only in it
        tensors = [parameter.data for parameter in parameters]
        fused_parameter = torch.cat([*map(torch.t, tensors)], 1).t() if is_input_major else torch.cat(tensors)
        for parameter, view in zip(parameters, fused_parameter.split([*map(len, parameters)]), strict=True):
            parameter.data = view
    return fused_parameter


def _are_joined(parameters: list[Tensor]) -> bool:
    """Whether parameters are consecutive rows of one tensor."""
    first_parameter = parameters[0]
    address = parameters[0].data_ptr()
    for parameter in parameters:
        if (parameter.data_ptr(), parameter.stride()) != (address, first_parameter.stride()):
            return False
        address += len(parameter) * first_parameter.stride(0) * first_parameter.element_size()
    return len({parameter.untyped_storage().data_ptr() for parameter in parameters}) == 1
