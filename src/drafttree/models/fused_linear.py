"""Linear layers and norms as few operations as possible, on the weights of the layers they stand in for."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from drafttree.models.fingerprint import sample, version

PACKED_FROM = 1 << 19
"""Elements of a weight from which a packed copy pays on a CPU."""
PACKED_FOR = 8
"""Rows the packed copy is laid out for."""

_packed_copies = WeakTensorKeyDictionary()


class FusedLinear:
    """One or several linear layers of one input as one product, by the faster of two libraries.

    On a CPU MKL reads a float32 weight as it is, which is best for one row; for several it packs the weight anew in
    every call, which costs two to three passes over one row. oneDNN keeps a packed copy of large weights instead: twice
    the memory of those, and several rows cost little more than one. The copy does not follow changes of the weight.

    Args:
        weight: `[out, in]`.
        bias: `[out]`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.t(), bias
        large = weight.numel() >= PACKED_FROM and weight.dtype == torch.float32
        packs = large and weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        self._packed = _pack(weight) if packs else None

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        if self._packed is not None and len(x) > 1:
            return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._packed, self._bias, "none", [], "")
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        if self._packed is not None and len(x) > 1:
            return self(x).add_(residual)
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)


def fuse(*layers: Any) -> FusedLinear:
    """Linear layers of one input as one product; their own weights become views of the fused one."""
    weight = _join([layer.weight for layer in layers])
    return FusedLinear(weight, _join([layer.bias for layer in layers]) if layers[0].bias is not None else None)


def _pack(weight: Tensor) -> Tensor:
    """oneDNN's copy of a weight, made once for as long as the weight is unchanged, for a target and its head alike."""
    stamp = (weight.data_ptr(), version(weight), sample(weight).tolist())
    if weight not in _packed_copies or _packed_copies[weight][0] != stamp:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
        _packed_copies[weight] = stamp, packed
    return _packed_copies[weight][1]


def _join(parts: list[Tensor]) -> Tensor:
    """Parameters stacked along their first dimension, in the memory order they have.

    Parameters that were joined before are not copied again: several backends may share a module.
    """
    if len(parts) == 1:
        return parts[0]
    if _are_joined(parts):
        return parts[0].data.as_strided((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].stride())
    input_major = parts[0].ndim == 2 and not parts[0].is_contiguous()
    with torch.inference_mode(parts[0].is_inference()):  # parameters made in that mode stay usable only in it
        columns = [part.data.t() if input_major else part.data for part in parts]
        whole = torch.cat(columns, 1).t() if input_major else torch.cat(columns)
        for part, own in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            part.data = own
    return whole


def _are_joined(parts: list[Tensor]) -> bool:
    """Whether parameters are consecutive rows of one tensor."""
    first, row = parts[0], parts[0].data_ptr()
    for part in parts:
        if (part.data_ptr(), part.stride()) != (row, first.stride()):
            return False
        row += len(part) * first.stride(0) * first.element_size()
    return len({part.untyped_storage().data_ptr() for part in parts}) == 1


def rms_norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """A transformers RMS norm as one call.

    On a CPU `F.rms_norm` is nine small operations; dividing by a length that includes epsilon is four. The scale is
    a copy there, which does not follow changes of the weight.
    """
    weight, epsilon = norm.weight.detach(), norm.variance_epsilon
    if weight.is_cuda or weight.dtype != torch.float32:
        return lambda x: F.rms_norm(x, weight.shape, weight, epsilon)
    scale = weight * math.sqrt(len(weight))
    shortest = torch.tensor(math.sqrt(len(weight) * epsilon))
    return lambda x: (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(shortest)).mul_(scale)
