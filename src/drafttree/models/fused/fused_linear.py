"""One or several linear layers of one input as one product, by the faster of two libraries.

A packed copy stands beside the weight, which the module keeps: its own `forward`, adapters, `state_dict` and heads that
share a weight go on reading it. So packing costs memory, which `FusedLinear.packed_nbytes` tells.
"""

import platform
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from drafttree.core.machine_memory import machine_memory
from drafttree.models.fused.packed_linear import pack, packed_product
from drafttree.models.fused.shared_weight import SharedWeightLinear, join
from drafttree.models.module.fingerprint import samples, version

PACKED_FROM = 1 << 19
"""Elements of a weight from which a packed copy pays on a CPU."""
LEFT_FREE = 0.1
"""The share of the machine's memory that packing leaves free."""

_packed_copies = WeakTensorKeyDictionary()


class FusedLinear:
    """One or several linear layers of one input as one product.

    On a CPU MKL reads a float32 weight as it is for one row; for several it packs the weight anew in every call, which
    costs two to three passes over one row. A bfloat16 weight is packed anew for any number of rows. oneDNN keeps a
    packed copy of large weights instead: twice the memory of those, and several rows cost little more than one. The
    copy does not follow changes of the weight.

    Args:
        weight: `[out, in]`.
        bias: `[out]`.
        uniform: use one library for any number of rows, so a row's product does not depend on their number.
        packs: whether a packed copy may be made.

    Attributes:
        width: number of outputs.
        packed_nbytes: memory of the packed copy, 0 without.
        unpacked_nbytes: memory of the weight where there was no room for a packed copy, else 0.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, uniform: bool = False, packs: bool = True) -> None:
        self._weight, self._bias = weight.t(), bias
        self.width = len(weight)
        wanted = packs and is_packable(weight) and (uniform or weight.numel() >= PACKED_FROM)
        self._packed = _pack(weight) if wanted else None
        packed = self._packed is not None
        self._packed_rows = 1 if uniform or weight.dtype != torch.float32 else _float32_rows_to_pack_from()
        self.packed_nbytes = weight.nbytes if packed else 0
        self.unpacked_nbytes = weight.nbytes if wanted and not packed else 0

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        if self._packed is not None and len(x) >= self._packed_rows:
            return packed_product(x, self._packed, self._bias)
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        if self._packed is not None and len(x) >= self._packed_rows:
            return self(x).add_(residual)
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)


class FusedSharedLinear:
    """One or several layers of one input that keep their weight once, as one product.

    Args:
        layers: the layers, which share a weight from then on.

    Attributes:
        width: number of outputs.
        packed_nbytes: 0, since there is no other copy of the weight.
        unpacked_nbytes: 0 as well.
    """

    packed_nbytes = unpacked_nbytes = 0

    def __init__(self, layers: list[SharedWeightLinear]) -> None:
        join(layers)
        self._product = layers[0].product
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self._bias = _join([*biases]) if biases else None
        self.width = sum(layer.out_features for layer in layers)

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        product = self._product(x)
        return product if self._bias is None else product.add_(self._bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        return self(x).add_(residual)


FusedProduct = FusedLinear | FusedSharedLinear


def fuse(*layers: Any, uniform: bool = False, packs: bool = True) -> FusedProduct:
    """Linear layers of one input as one product; their own weights become views of the fused one."""
    if isinstance(layers[0], SharedWeightLinear):
        return FusedSharedLinear([*layers])
    bias = _join([layer.bias for layer in layers]) if layers[0].bias is not None else None
    return FusedLinear(_join([layer.weight for layer in layers]), bias, uniform, packs)


def multiplies_bfloat16_fast(device: torch.device) -> bool:
    """Whether a device has instructions for products in bfloat16, rather than converting every value."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type != "cpu" or torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()


def _float32_rows_to_pack_from() -> int:
    """Rows from which the packed copy of a float32 weight is the faster.

    For one row, MKL was the faster by a seventh on an Intel Cascade Lake. On an AMD EPYC it computes in one thread
    (torch 2.13), and the packed copy with two was up to 1.5 times as fast. Other vendors are taken to be as AMD.
    A race at load would decide by noise where the two are close.
    """
    return 2 if torch.get_num_threads() == 1 or _is_intel() else 1


@lru_cache(maxsize=1)
def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return "GenuineIntel" in platform.processor()


def is_packable(weight: Tensor) -> bool:
    """Whether oneDNN packs weights of this dtype on this device, and multiplies them fast."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:  # oneDNN also packs where it then converts every value
        return torch.ops.mkldnn._is_mkldnn_bf16_supported() and multiplies_bfloat16_fast(weight.device)
    return weight.dtype == torch.float32


def _pack(weight: Tensor) -> Tensor | None:
    """oneDNN's copy of a weight, made once for as long as the weight is unchanged, for a target and its head alike.

    None where memory is short.
    """
    stamp = (weight.data_ptr(), version(weight), *(view.tolist() for view in samples(weight)))
    if weight not in _packed_copies or _packed_copies[weight][0] != stamp:
        memory = machine_memory()
        if memory and memory.free - weight.nbytes < LEFT_FREE * memory.total:
            return None
        _packed_copies[weight] = stamp, pack(weight.detach())  # a graph would keep the weight, and so itself
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
