"""Linear layers with weights of eight bits: less memory and time, and another model with its own text.

A weight has one scale per output. The rows it is multiplied with are rounded to sixteen bits, each by its own largest
value, so that a token's logits do not depend on the others in its pass. Eight bits would be faster, but attention adds
a tree's rows up in another order than a chain's: the last place of a sum would then decide between integers far apart.

The integers are multiplied and added exactly, whatever the kernel and however many rows there are, so what one CPU
computes every other does too, to the last bit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.fused.shared_weight import SharedWeightLinear

INT8_MAX = 127
MIDDLE = 128
"""What stands for 0 in the bytes of activations."""
LARGEST = 256 * INT8_MAX
"""An activation of sixteen bits, which is 256 times its upper byte and its lower one, both from -128 to 127."""
SHIFT = float(2**23 + 256 * MIDDLE + MIDDLE)
EXACT_WIDTH = 1024
"""Inputs whose products float32 adds up exactly: 1024 * 128 * 127 is below 2 ** 24."""
CUDA_ROWS, CUDA_MULTIPLE = 32, 8
"""Rows that torch's product of integers on CUDA takes at least, and what its sizes are multiples of."""


_rounds: ContextVar[bool] = ContextVar("rounds", default=True)


@contextmanager
def unrounded_activations() -> Iterator[None]:
    """Multiply activations as they are.

    Two ways to compute one sum differ in its last place, which may round an activation to another integer. Whether the
    ways agree is seen without that.
    """
    token = _rounds.set(False)
    try:
        yield
    finally:
        _rounds.reset(token)


class Int8Linear(SharedWeightLinear):
    """A linear layer with the weight of another, rounded to eight bits.

    Args:
        layer: the layer to be quantised; the products have its dtype.

    Attributes:
        quantized: the weight: int8 `[out, in]`, or packed by oneDNN.
        scale: float32 `[out]`: what an integer stands for.
    """

    shared = ("quantized", "scale")

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1) / INT8_MAX
        rounded = (weight / torch.where(scale == 0, 1.0, scale)[:, None]).round_().clamp_(-INT8_MAX, INT8_MAX)
        self.take({"quantized": rounded.to(torch.int8), "scale": scale})

    def product(self, x: Tensor) -> Tensor:
        return int8_product(x, self.quantized, self.scale)

    def own(self) -> dict[str, Tensor]:
        return {"quantized": unpack(self.quantized)[self.outputs], "scale": self.scale.detach()[self.outputs]}

    def take(self, parts: Mapping[str, Tensor]) -> None:
        self.quantized = nn.Parameter(pack(parts["quantized"]), requires_grad=False)
        self.scale = nn.Parameter(parts["scale"], requires_grad=False)


def int8_product(x: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """The product of `[rows, in]`, quantised row by row, with a weight; `[rows, out]` of the dtype of `x`."""
    if not _rounds.get():
        weight = unpack(quantized).to(x.dtype) * scale.to(x.dtype)[:, None]
        return torch.nn.functional.linear(x, weight)
    exact = x if x.dtype == torch.float32 else x.float()
    unit = exact.abs().amax(-1, keepdim=True) / LARGEST
    # rounded, since a float this large has no place behind the point; its lowest bytes are the integer's.
    # A row of zeros has some integers or other, and the unit 0
    shifted = (exact / unit).add_(SHIFT).view(torch.int32)
    nodes, bytes_ = len(x), torch.empty((2 * len(x), x.shape[1]), dtype=torch.uint8, device=x.device)
    bytes_[:nodes], bytes_[nodes:] = shifted, shifted >> 8
    product = (_packed_product if quantized.is_mkldnn else _exact_product)(bytes_, quantized, scale)
    return product[:nodes].add_(product[nodes:], alpha=256).mul_(unit).to(x.dtype)


def _packed_product(rows: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """The product of bytes `[rows, in]`, where `MIDDLE` stands for 0, with a packed weight, float32 `[rows, out]`."""
    none = _no_offsets(len(scale))
    return torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, MIDDLE, quantized, scale, none, None, 1.0, 0, torch.float32, "none", [], ""
    )


def _exact_product(rows: Tensor, quantized: Tensor, scale: Tensor) -> Tensor:
    """The same with a weight that is not packed, to the last bit."""
    signed = rows.to(torch.int16).sub_(MIDDLE).to(torch.int8)
    if rows.is_cuda:
        count = max(len(rows), CUDA_ROWS)
        padded = torch.nn.functional.pad(signed, (0, 0, 0, count - len(rows) + -count % CUDA_MULTIPLE))
        return torch.ops.aten._int_mm(padded, quantized.t())[: len(rows)].float().mul_(scale)
    total = torch.zeros(len(rows), len(quantized), dtype=torch.float64)
    for part, weight in zip(signed.split(EXACT_WIDTH, 1), quantized.split(EXACT_WIDTH, 1), strict=True):
        total += part.float() @ weight.float().t()
    return total.float().mul_(scale)


def pack(quantized: Tensor) -> Tensor:
    """An int8 weight `[out, in]` as products read it: packed on a CPU that multiplies bytes, else as it is."""
    return torch.ops.onednn.qlinear_prepack(quantized, None) if quantized.is_cpu and multiplies_bytes() else quantized


def unpack(quantized: Tensor) -> Tensor:
    """A weight of `pack`, int8 `[out, in]`."""
    return quantized.detach().to_dense().t().contiguous() if quantized.is_mkldnn else quantized.detach()


@lru_cache(maxsize=1)
def multiplies_bytes() -> bool:
    """Whether oneDNN multiplies bytes on this CPU, and adds the products up without a sum that overflows.

    CPUs before VNNI add pairs of products in 16 bits.
    """
    if not torch.backends.mkldnn.is_available():
        return False
    width = 64
    try:
        weight = torch.ops.onednn.qlinear_prepack(torch.full((width, width), INT8_MAX, dtype=torch.int8), None)
        largest = torch.full((2, width), MIDDLE + INT8_MAX, dtype=torch.uint8)
        found = _packed_product(largest, weight, torch.ones(width))
    except (RuntimeError, AttributeError):
        return False
    return torch.cpu._is_vnni_supported() and bool((found == width * INT8_MAX**2).all())


@lru_cache(maxsize=64)
def _no_offsets(outputs: int) -> Tensor:
    return torch.zeros(outputs, dtype=torch.int8)


@torch.no_grad()
def quantize_int8(module: PreTrainedModel) -> None:
    """Replace all linear layers of a model but its head, which often is the embedding too, by `Int8Linear`.

    Raises:
        ModelError: the model is quantised already, it has no linear layers but its head, or its device has no product
            for them.
    """
    kind = type(module).__name__
    if method := quantization(module):
        raise ModelError(f"{kind} is quantised already ({method}); leave out quantize")
    parts = [(part, name, child) for part in module.modules() for name, child in part.named_children()]
    head = module.get_output_embeddings()
    layers = [(part, name, child) for part, name, child in parts if type(child) is nn.Linear and child is not head]
    if not layers:
        raise ModelError(f"{kind} has no linear layers to quantise but its head; leave out quantize")
    for _, name, child in layers:
        _check_device(kind, name, child)
    for part, name, child in layers:
        setattr(part, name, Int8Linear(child))


def _check_device(kind: str, name: str, layer: nn.Linear) -> None:
    device, sizes = layer.weight.device.type, (layer.in_features, layer.out_features)
    if device not in ("cpu", "cuda"):
        raise ModelError(f"{kind} is on {device}, where nothing multiplies int8 weights; leave out quantize")
    if device == "cuda" and any(size % CUDA_MULTIPLE for size in sizes):
        raise ModelError(
            f"{name} of {kind} has {sizes[0]} inputs and {sizes[1]} outputs; on CUDA int8 weights need multiples of "
            f"{CUDA_MULTIPLE}; leave out quantize"
        )


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
