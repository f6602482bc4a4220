"""A linear layer whose weight is quantised, and how a module's layers are."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import Tensor, nn

from drafttree.models.quantization import blocks

ROWS_AT_ONCE = 256
"""Rows of a weight that are in float32 at once, so that they do not leave a processor's cache."""


_rounds: ContextVar[bool] = ContextVar("rounds", default=True)


@contextmanager
def unrounded_activations() -> Iterator[None]:
    """Multiply activations as they are, on CUDA too.

    Two ways to compute one sum differ in its last place, which may round an activation to another integer. Whether the
    ways agree is seen without that.
    """
    token = _rounds.set(False)
    try:
        yield
    finally:
        _rounds.reset(token)


def rounds_activations() -> bool:
    """Whether activations are rounded where a device multiplies integers."""
    return _rounds.get()


class QuantizedLinear(nn.Module):
    """A linear layer with the weight of another, quantised; each method of quantisation is a class.

    The weight is not called `weight`, so a model that reads a layer's weight itself fails instead of computing with
    something else.

    Args:
        layer: the layer to be quantised.

    Attributes:
        method: name of the method.
        quantized: the weight, with a row for each output.
        scale: float32 `[out]`: what the numbers of a row stand for; None where that is in the row.
        blocks: name of the blocks that rows of bytes are, None where they are none.
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
        """The product of `[rows, in]` with the weight, `[rows, out]` of the dtype of `x`, without the bias."""
        raise NotImplementedError

    def dequantized(self) -> Tensor:
        """The weight, `[out, in]` in float32."""
        return dequantized_rows(self.quantized.detach(), self.scale, self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        product = self.product(x.flatten(0, -2))
        return (product if self.bias is None else product + self.bias).unflatten(0, x.shape[:-1])


def dequantized_rows(quantized: Tensor, scale: Tensor | None, form: str | None) -> Tensor:
    """Rows of a quantised weight in float32, given those of `quantized` and of `scale`, and the name of its blocks."""
    if form:
        return blocks.dequantized(quantized, form)
    assert scale is not None
    return quantized * scale[:, None]


def quantized_layers(module: nn.Module) -> list[QuantizedLinear]:
    """The quantised layers of a module."""
    return [submodule for submodule in module.modules() if isinstance(submodule, QuantizedLinear)]


def quantized_scales(module: nn.Module) -> list[Tensor]:
    """The scales of all quantised layers of a module, which are no parameters."""
    return [layer.scale for layer in quantized_layers(module) if layer.scale is not None]


def quantization(module: nn.Module) -> str | None:
    """How the weights of a model are quantised, None if they are not."""
    if methods := {layer.method for layer in quantized_layers(module)}:
        return ", ".join(sorted(methods))
    return quantization_method(getattr(getattr(module, "config", None), "quantization_config", None))


def quantization_method(settings: object) -> str | None:
    """The name of the method in the `quantization_config` of a model, None without one."""
    if not settings:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method) or "by a method it does not name")
