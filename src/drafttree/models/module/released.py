"""Released weights: once drafttree-native has packed a layer's weight, the layer drops its values until they are used.

A released weight is the parameter that the layer always had, without its values. Its name, shape, dtype and size can
be read. Its values are unpacked before they are read or edited: by a pass of the module, an adapter, a state dict,
`.data`, `deepcopy`, `to` or an optimiser. Then the weight is an ordinary parameter again.

A weight is released only if nothing else refers to it or to its memory. An edit through another reference might not go
through torch, and would be lost.
"""

import copy
import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

MAX_GIVEN_BACK = 2
"""A weight that was given back this often keeps its values: it seems to be in use, and unpacking takes time."""
LOOKED_AT = (
    *("shape", "dtype", "device", "ndim", "nbytes", "itemsize", "layout", "requires_grad", "is_leaf", "grad"),
    *("grad_fn", "is_meta", "is_cpu", "is_cuda", "is_mps", "is_xpu", "is_quantized", "is_sparse", "is_mkldnn"),
    *("_version", "_backward_hooks", "_post_accumulate_grad_hooks"),
)
"""Attributes of tensors that reveal neither the values nor their address."""
CALLS = (
    *("size", "dim", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "is_inference"),
    *("__len__", "__hash__"),
)
"""Methods of tensors that reveal neither."""
LOOKS = {getattr(Tensor, name).__get__ for name in LOOKED_AT} | {getattr(Tensor, name) for name in CALLS}
_giving = threading.RLock()


class ReleasedWeight(nn.Parameter):
    """A parameter without values, which becomes an ordinary one when its values are used."""

    release: "Release"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LOOKS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        for weight in _released_in([args, [*kwargs.values()]]):
            _give_back(weight)
        return func(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(_give_back(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _give_back(self).__reduce_ex__(protocol)


class Release:
    """Releases a weight of a layer, and gives it its values back.

    Args:
        layer: the layer that has the weight.
        name: name of the weight in the layer.
        unpack: makes the values again, in the same shape and dtype.
        holders: number of modules that have the weight.
    """

    def __init__(self, layer: nn.Module, name: str, unpack: Callable[[], Tensor], holders: int = 1) -> None:
        weight: Any = layer._parameters[name]
        self._layer = weakref.ref(layer)
        self._name = name
        self._unpack = unpack
        self._holders = holders
        self._weight = weakref.ref(weight)  # no reference cycle, so that weights are freed when they are packed anew
        self._input_major = weight.ndim == 2 and weight.stride(0) == 1 and weight.shape[1] > 1
        self._is_inference = weight.is_inference()  # stays so, whatever edits it
        self._times = 0
        self._hide(weight)
        self._empty(weight)

    @property
    def is_released(self) -> bool:
        """Whether the weight has no values at present."""
        return type(self._weight()) is ReleasedWeight

    def is_of(self, weight: object) -> bool:
        """Whether this is the released weight. If it has its values back, they must be unchanged."""
        return weight is self._weight() and (self.is_released or self._is_unchanged())

    def give_back(self) -> None:
        """Give the weight its values back."""
        with _giving:
            weight = self._weight()
            if weight is None or type(weight) is not ReleasedWeight:  # another thread was faster
                return
            with _as_it_was_made(self._is_inference):
                values = self._unpack()
                weight.data = values.t().contiguous().t() if self._input_major else values
            self._show(weight)
            self._times += 1

    def take_back(self) -> None:
        """Release the weight again if it is unchanged, nothing else refers to it, and it was seldom given back."""
        with _giving:
            weight = self._weight()
            layer = self._layer()
            if weight is None or layer is None or self.is_released or self._times >= MAX_GIVEN_BACK:
                return
            if layer._parameters.get(self._name) is not weight:
                return
            self._hide(weight)  # first, so that a thread that uses it from now on waits
            del weight
            with torch._C.DisableTorchFunctionSubclass():
                is_alone = _is_alone(layer, self._name, self._holders) and self._is_unchanged()
            weight = layer._parameters[self._name]
            if is_alone:
                self._empty(weight)
            else:
                self._show(weight)

    def _is_unchanged(self) -> bool:
        weight = self._weight()
        if weight is None or weight.device.type != "cpu":
            return False
        values = self._unpack()
        return (weight.dtype, weight.shape) == (values.dtype, values.shape) and torch.equal(values, weight)

    def _hide(self, weight: Any) -> None:
        weight.release = self
        weight.__class__ = ReleasedWeight

    def _show(self, weight: Any) -> None:
        weight.__class__ = nn.Parameter
        del weight.release

    def _empty(self, weight: Any) -> None:
        # NaN, so that a read that bypasses torch's functions is noticed
        fill_value = math.nan if weight.dtype.is_floating_point else 0
        with _as_it_was_made(self._is_inference):
            weight.data = torch.full((1,), fill_value, dtype=weight.dtype, device="cpu").expand(weight.shape)


def _give_back(weight: Any) -> Any:
    if release := vars(weight).get("release"):  # else another thread was faster
        release.give_back()
    return weight


def _released_in(values: Iterable[Any]) -> Iterator[ReleasedWeight]:
    """The released weights among arguments of a function of torch."""
    for value in values:
        if type(value) is ReleasedWeight:
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _released_in(value.values() if isinstance(value, dict) else value)


@contextmanager
def _as_it_was_made(is_inference: bool) -> Iterator[None]:
    """Context manager: new tensors are inference tensors if the weight was one, whatever mode is on outside."""
    with ExitStack() as modes:
        for mode in (torch.inference_mode(is_inference), torch.no_grad(), _disable_current_modes()):
            modes.enter_context(mode)
        modes.enter_context(torch._C.DisableTorchFunctionSubclass())
        yield


def stand_in(value: object) -> object:
    """The `Release` of a released weight, to keep instead of a reference to the weight; other objects as they are."""
    return vars(value).get("release", value) if type(value) is ReleasedWeight else value


def place(weight: Tensor) -> int:
    """A number that differs between weights with different memory, released or not."""
    return id(weight) if isinstance(weight, ReleasedWeight) else weight.data_ptr()


def shapes(module: nn.Module) -> list[tuple[str, list[int], str]]:
    """Name, shape and dtype of each entry of a module's state dict."""
    entries = []
    for prefix, submodule in module.named_modules(remove_duplicate=False):
        for name, tensor in (submodule._parameters | submodule._buffers).items():
            if tensor is not None and name not in submodule._non_persistent_buffers_set:
                entries.append((f"{prefix}.{name}".lstrip("."), list(tensor.shape), str(tensor.dtype)))
    return entries


def can_release(layer: nn.Module, name: str, holders: int = 1) -> bool:
    """Whether a layer may release a parameter: it is an ordinary one, and only `holders` modules refer to it."""
    return type(layer._parameters[name]) is nn.Parameter and _is_alone(layer, name, holders)


def _is_alone(layer: nn.Module, name: str, holders: int) -> bool:
    weight: Any = layer._parameters[name]
    if weight.device.type != "cpu" or not weight.is_leaf or weight.is_shared():
        return False
    if weight.grad is not None or weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
        return False
    del weight
    weight_holders, *memory_holders = _holders(layer, name)
    base_holders, *base_memory_holders = _holders_of_one()
    return weight_holders == base_holders + holders - 1 and memory_holders == base_memory_holders


def _holders(layer: nn.Module, name: str) -> tuple[int, int, int]:
    """The numbers of references to a layer's parameter, to its storage object, and to the storage itself."""
    weight: Any = layer._parameters[name]
    memory = weight.untyped_storage()
    users = torch._C._storage_Use_Count(memory._cdata)
    return sys.getrefcount(weight), sys.getrefcount(memory), users


@lru_cache(maxsize=1)
def _holders_of_one() -> tuple[int, int, int]:
    """The `_holders` of a parameter to which only its layer refers."""
    return _holders(nn.Linear(1, 1, device="cpu"), "weight")
