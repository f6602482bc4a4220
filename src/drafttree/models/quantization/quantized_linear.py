"""The base of linear layers whose weight is quantised, and how the layers of a module are quantised."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from drafttree.models.quantization import blocks

ROWS_AT_ONCE = 256
"""Number of rows of a weight that are converted to float32 at once, so that they stay in a processor's cache."""


_rounds: ContextVar[bool] = ContextVar("rounds", default=True)


@contextmanager
def unrounded_activations() -> Iterator[None]:
    """Context manager: activations are not rounded, not even on CUDA.

    Two backends may differ in the last place of a sum, and then round an activation to different integers. Without
    rounding, a comparison shows whether they agree.
    """
    token = _rounds.set(False)
    try:
        yield
    finally:
        _rounds.reset(token)


def rounds_activations() -> bool:
    """Whether activations are rounded on devices that multiply integers."""
    return _rounds.get()


class QuantizedLinear(nn.Module):
    """Base of linear layers with a quantised weight; each method of quantisation has a subclass.

    The weight is not called `weight`, so that a model that reads it directly fails instead of computing wrong results.

    Args:
        layer: the layer that it replaces.

    Attributes:
        method: name of the method.
        quantized: the weight, with a row for each output.
        scale: float32 `[out]` factors of the rows, None if the rows contain their scales.
        blocks: name of the blocks that the rows consist of, None if they are plain numbers.
        bias: `[out]` or None.
    """

    method: str
    quantized: nn.Parameter
    scale: Tensor | None
    blocks: str | None = None

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.training = layer.training
        self.in_features = layer.in_features
        self.out_features = layer.out_features
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def product(self, x: Tensor) -> Tensor:
        """The product of `x` `[rows, in]` with the weight, `[rows, out]` in the dtype of `x`, without the bias."""
        raise NotImplementedError

    def dequantized(self) -> Tensor:
        """The weight, `[out, in]` in float32."""
        return dequantized_rows(self.quantized.detach(), self.scale, self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        product = self.product(x.flatten(0, -2))
        return (product if self.bias is None else product + self.bias).unflatten(0, x.shape[:-1])


def dequantized_rows(quantized: Tensor, scale: Tensor | None, block_name: str | None) -> Tensor:
    """Convert rows of a quantised weight to float32, given their scales or the name of their blocks."""
    if block_name:
        return blocks.dequantized(quantized, block_name)
    assert scale is not None
    return quantized * scale[:, None]


def quantized_layers(module: nn.Module) -> list[QuantizedLinear]:
    """The quantised layers of a module."""
    return [submodule for submodule in module.modules() if isinstance(submodule, QuantizedLinear)]


def quantized_scales(module: nn.Module) -> list[Tensor]:
    """The scales of all quantised layers of a module, which are not among its parameters."""
    return [layer.scale for layer in quantized_layers(module) if layer.scale is not None]


def quantization(module: nn.Module) -> str | None:
    """How the weights of a model are quantised, None if they are not."""
    if methods := {layer.method for layer in quantized_layers(module)}:
        return ", ".join(sorted(methods))
    return quantization_method(getattr(getattr(module, "config", None), "quantization_config", None))


def quantization_method(settings: object) -> str | None:
    """The name of the method in a model's `quantization_config`, None if there is no config."""
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method) or "by a method it does not name")
