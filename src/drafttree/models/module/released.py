"""Weights that exist once: what drafttree-native has packed is released by the layers until somebody reads it.

A released layer's `_parameters` is a `ReleasedParameters`. Anything that reads the weight there (a pass of the module,
an adapter, a state dict, `parameters()`, `deepcopy`, `to`, an optimiser) gets it back first, unpacked, and the layer is
an ordinary one again. What only looks uses `look` and `weights`.

A weight is released only where nobody else holds it or its memory: they could edit it, and the edit would be lost.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

MOST = 2
"""Times that a weight is given back before it stays: somebody uses it, and to unpack it again and again takes time."""
_giving = threading.RLock()


class Released:
    """Stands for a released weight where it is only looked at, as long as its owner lives.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        nbytes: its bytes.
    """

    def __init__(self, owner: "ReleasedParameters", name: str, weight: Tensor) -> None:
        self._owner, self._name = weakref.ref(owner), name  # no circle, so that weights go when they are packed anew
        self.shape, self.dtype, self.nbytes = weight.shape, weight.dtype, weight.nbytes

    @property
    def owner(self) -> "ReleasedParameters":
        """What gives it back."""
        owner = self._owner()
        assert owner is not None, "whoever keeps a Released keeps its owner"
        return owner

    def numel(self) -> int:
        return self.shape.numel()

    def is_unchanged(self, weight: object) -> bool:
        """Whether a weight is the one that was given back, with the values it had."""
        if not isinstance(weight, Tensor) or weight is not self.owner.given(self._name):
            return False
        alike = weight.device.type == "cpu" and (weight.dtype, weight.shape) == (self.dtype, self.shape)
        return alike and torch.equal(self.owner.unpack[self._name](), weight)


class _Traits(NamedTuple):
    """What a parameter has beside its values."""

    requires_grad: bool
    attributes: dict[str, Any]
    input_major: bool

    @classmethod
    def of(cls, weight: Tensor) -> "_Traits":
        input_major = weight.ndim == 2 and weight.stride(0) == 1 and weight.shape[1] > 1
        return cls(weight.requires_grad, dict(vars(weight)), input_major)


class ReleasedParameters(dict[str, Any]):
    """The parameters of a layer of which some are released; in place of a module's `_parameters`.

    Args:
        layer: the layer, which has the weights still.
        unpack: by name, makes a weight anew, of the same shape and values.

    Attributes:
        unpack: as given.
        weights: by name, what stands for a weight.
    """

    def __init__(self, layer: nn.Module, unpack: Mapping[str, Callable[[], Tensor]]) -> None:
        self.unpack, self._layer = dict(unpack), weakref.ref(layer)
        own = vars(layer)["_parameters"]
        self.weights = {name: Released(self, name, own[name]) for name in unpack}
        self._given: dict[str, weakref.ref[Any]] = {}
        self._times = 0
        self._plain: dict[str, Any] | None = None
        """What the layer has instead since the weight was given back; whoever has this object reads and edits that."""
        self._take(layer)

    def given(self, name: str) -> Tensor | None:
        """The weight that the layer has instead, None if it was never given back or is gone."""
        return self._given[name]() if name in self._given else None

    @property
    def parameters(self) -> dict[str, Any]:
        """What the layer has, in order, with those of `weights` that are released; not to be changed."""
        plain = self._plain
        return self._looked if plain is None else plain

    def look(self) -> dict[str, Any]:
        """A copy of `parameters`."""
        with _giving:
            return dict(self.parameters)

    def give_back(self) -> dict[str, Any]:
        """Let the layer have its weights again; its parameters."""
        with _giving:
            if self._plain is not None:
                return self._plain
            # ordinary parameters, in whatever mode they are read
            with torch.inference_mode(False), torch.no_grad(), _disable_current_modes():
                weights = {name: self._unpacked(name) for name in self.unpack}
            self._given, self._times = {name: weakref.ref(own) for name, own in weights.items()}, self._times + 1
            plain = self._plain = self._looked | weights
            layer = self._layer()
            if layer is not None and vars(layer)["_parameters"] is self:
                vars(layer)["_parameters"] = plain
            return plain

    def take_back(self) -> None:
        """Release the weights again if they are unchanged, nobody else holds them, and they are not read all the time.

        All of them or none: whoever reads one often reads the layer.
        """
        with _giving:
            layer, plain = self._layer(), self._plain
            if plain is None or layer is None or self._times >= MOST:
                return
            if vars(layer)["_parameters"] is not plain or not all(self._is_given(plain, name) for name in self.unpack):
                return
            del plain
            self._take(layer)  # first: whoever reads or edits a weight from now on waits
            kept = nn.Module()
            vars(kept)["_parameters"], self._plain = self._plain, None
            if not all(can_release(kept, name) and self._is_unchanged(name) for name in self.unpack):
                self._plain = vars(layer)["_parameters"] = vars(kept)["_parameters"]

    def _take(self, layer: nn.Module) -> None:
        own = vars(layer)["_parameters"]
        self._traits = {name: _Traits.of(own[name]) for name in self.unpack}
        self._looked = own | self.weights
        vars(layer)["_parameters"] = self

    def _unpacked(self, name: str) -> nn.Parameter:
        unpacked, traits = self.unpack[name](), self._traits[name]
        unpacked = unpacked.t().contiguous().t() if traits.input_major else unpacked
        weight = nn.Parameter(unpacked, traits.requires_grad)
        vars(weight).update(traits.attributes)
        return weight

    def _is_given(self, plain: dict[str, Any], name: str) -> bool:
        """Whether a layer has the weight still that it was given back."""
        given = self.given(name)
        return given is not None and plain.get(name) is given

    def _is_unchanged(self, name: str) -> bool:
        return self.weights[name].is_unchanged(self.given(name))

    def __contains__(self, name: object) -> bool:  # asked before every attribute of a module
        return name in self.look()

    def __getitem__(self, name: str) -> Any:
        return (self.give_back() if name in self.unpack else self.look())[name]

    def __reduce_ex__(self, _: Any) -> tuple[type[dict], tuple[dict[str, Any]]]:
        return dict, (self.give_back(),)


def _giving_back(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)
    return lambda self, *given, **named: method(self.give_back(), *given, **named)


for _name in (
    *("__iter__", "__len__", "__reversed__", "__setitem__", "__delitem__", "__eq__", "__ne__", "__repr__"),
    *("__or__", "__ror__", "__ior__", "keys", "values", "items", "get", "pop", "popitem", "setdefault"),
    *("update", "clear", "copy"),
):
    setattr(ReleasedParameters, _name, _giving_back(_name))


def look(part: nn.Module) -> dict[str, Any]:
    """The parameters of a module itself, with a `Released` for one that it has released."""
    own = vars(part)["_parameters"]
    return own.look() if isinstance(own, ReleasedParameters) else own


def weights(module: nn.Module) -> Iterator[Any]:
    """What `parameters()` gives, with a `Released` for each that is released."""
    seen = set[int]()
    for part in module.modules():
        for each in look(part).values():
            if each is not None and id(each) not in seen:
                seen.add(id(each))
                yield each


def place(weight: Any) -> int:
    """What tells the memory of a weight of `weights` from that of others."""
    return id(weight) if isinstance(weight, Released) else weight.data_ptr()


def shapes(module: nn.Module) -> list[tuple[str, list[int], str]]:
    """Name, shape and dtype of all that a state dict has."""
    found = []
    for prefix, part in module.named_modules(remove_duplicate=False):
        kept = {name: each for name, each in part._buffers.items() if name not in part._non_persistent_buffers_set}
        own = ((name, each) for name, each in (look(part) | kept).items() if each is not None)
        found += [(f"{prefix}.{name}".lstrip("."), list(each.shape), str(each.dtype)) for name, each in own]
    return found


def can_release(layer: nn.Module, name: str) -> bool:
    """Whether a layer may release a parameter: an ordinary one that nobody else holds."""
    weight = vars(layer)["_parameters"][name]
    if type(weight) is not nn.Parameter or weight.device.type != "cpu" or not weight.is_leaf or weight.is_shared():
        return False
    if weight.grad is not None or weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
        return False
    del weight
    return _holders(layer, name) == _alone()


def _holders(layer: nn.Module, name: str) -> tuple[int, int, int, int]:
    """How often are referred to: a layer's parameters, one of them, its memory as an object, and its memory as such."""
    own = vars(layer)["_parameters"]
    weight = own[name]
    memory = weight.untyped_storage()
    users = torch._C._storage_Use_Count(memory._cdata)
    return sys.getrefcount(own), sys.getrefcount(weight), sys.getrefcount(memory), users


@lru_cache(maxsize=1)
def _alone() -> tuple[int, int, int, int]:
    """What is counted of a parameter that nobody holds but its layer."""
    return _holders(nn.Linear(1, 1, device="cpu"), "weight")
