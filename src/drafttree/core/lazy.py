"""numpy, torch and transformers, imported when they are first used: together they take seconds.

`core`, `policies` and `verifiers` take them from here, and the packages above them are lazy doors. So methods can be
listed, named and checked without the three libraries. Python evaluates annotations when a function is defined. So
`Array` and `Tensor` stand in for the classes of numpy and torch, and annotations name their other classes as strings.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef

if TYPE_CHECKING:
    import numpy as np
    import torch as torch
    import transformers as transformers
    from numpy import ndarray as Array
    from torch import Tensor as Tensor


class LazyModule:
    """A module that is imported when one of its attributes is first asked for, and keeps those it was asked for."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = import_module(self._name)
        value = vars(self)[attribute] = getattr(self._module, attribute)
        return value


if not TYPE_CHECKING:
    np = LazyModule("numpy")
    torch = LazyModule("torch")
    transformers = LazyModule("transformers")
    Array = ForwardRef("numpy.ndarray")
    Tensor = ForwardRef("torch.Tensor")


def lazy_door(package: str, exports: Sequence[str], homes: Sequence[str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) whose exports are imported when they are first asked for.

    Args:
        package: its name.
        exports: its `__all__`: modules of the package, and names of `homes`.
        homes: the modules in which a name is looked for, the cheapest to import first.
    """

    def find(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        export = next(getattr(module, name) for module in map(import_module, homes) if hasattr(module, name))
        setattr(sys.modules[package], name, export)
        return export

    return find
