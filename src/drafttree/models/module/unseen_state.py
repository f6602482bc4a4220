"""State that may decide a text but that a `Fingerprint` cannot compare, since functions and objects hide it.

Values, tensors, containers, configs, modules and objects with a `__dict__` are compared. A function is compared by
identity, so it hides what it closes over, mutable defaults and its attributes. A bound method hides its object. Numpy
arrays, objects with `__slots__` and most objects of libraries are compared by identity too. Functions of libraries hide
nothing except foreign functions that they close over.
"""

import dis
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from transformers import PreTrainedConfig

LIBRARIES = ("torch.", "transformers.", "accelerate.", "peft.")
"""Packages whose functions have no state outside of modules."""
KNOWN = (*LIBRARIES, "builtins", "drafttree.", "transformers_modules.", "bitsandbytes.", "torchao.")
"""Packages whose classes of modules read only what their instances hold."""
CLOSED = {*sys.stdlib_module_names, "drafttree", "numpy", "tokenizers", "torch", "transformers"}
"""Packages whose objects are compared by identity, unless they are modules or configs."""
VARYING = {"os", "random", "time"}
"""Modules of Python's library whose functions and values may differ from call to call."""
VALUES = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
CONTAINERS = dict | list | tuple | set | frozenset
LONGEST = 1 << 16
"""Entries of the largest container whose contents are compared."""
UNREAD = {name for name in vars(nn.Module()) if "hook" in name} | {
    *("generation_config", "_attn_implementation_internal", "_attn_implementation"),
    "_verified_by_drafttree",
}
"""Attributes that are not compared: hooks, which are compared separately, and those that decide no text."""
FUNCTIONS = FunctionType | MethodType
CODE = BuiltinFunctionType | ClassMethodDescriptorType | MethodDescriptorType | WrapperDescriptorType
DESCRIPTORS = property | staticmethod | classmethod | cached_property | GetSetDescriptorType | MemberDescriptorType


def unseen_state(module: nn.Module, compared: Iterable[object]) -> str | None:
    """Name a place where state that is not compared may decide a text, None if there is none.

    Args:
        module: the whole module, by which layers are named.
        compared: all modules and other objects whose attributes are compared.
    """
    if not all(map(is_of_library, global_hooks())):
        return "a global forward hook"
    compared = [*compared]
    hidden_state = HiddenState(compared)
    for layer in compared:
        if isinstance(layer, nn.Module) and (description := _unseen_of(layer, module, hidden_state)):
            return description
    return None


def _unseen_of(layer: nn.Module, module: nn.Module, hidden_state: "HiddenState") -> str | None:
    """Name the part of a layer that hides a state, None if none does."""
    replaced_forwards = [vars(layer)[name] for name in ("forward", "_old_forward") if name in vars(layer)]
    for source, functions in (("the forward hook", own_hooks(layer)), ("the replaced forward", replaced_forwards)):
        if not all(map(is_of_library, functions)):
            name = next((name for name, submodule in module.named_modules() if submodule is layer), "")
            return f"{source} of {name or type(layer).__name__}"
    if is_patched(type(layer)):
        return f"the forward of the class {type(layer).__name__}"
    member = hidden_state.attribute(layer) or hidden_state.method(layer)
    return member and f"{member} of the class {type(layer).__name__}"


class HiddenState:
    """Finds parts of modules that hide a state from a `Fingerprint`.

    Args:
        compared: as of `unseen_state`.
    """

    def __init__(self, compared: Iterable[object]) -> None:
        self._compared = {*map(id, compared)}
        self._visited: dict[int, object] = {}

    def attribute(self, layer: nn.Module) -> str | None:
        """An attribute of a module that hides a state; in a library's layer, only a local function can hide one."""
        hides = self._hides if foreign_classes(layer) else self._hides_local
        for name, value in vars(layer).items():
            if name not in UNREAD and hides(value):
                return f"the attribute {name}"
        return None

    def method(self, layer: nn.Module) -> str | None:
        """A method that hides a state, in a class from outside of known libraries."""
        for cls in foreign_classes(layer):
            for name, function in _methods(cls).items():
                if self._method_hides(function):
                    return f"the method {name}"
        return None

    def _hides(self, value: Any) -> bool:
        """Whether a value may hold a state that is not compared."""
        if type(value) in VALUES or isinstance(value, Tensor | nn.Module | PreTrainedConfig | Enum):
            return False
        if id(value) in self._visited:
            return False
        self._visited[id(value)] = value
        if isinstance(value, CONTAINERS):
            contents = [*value, *value.values()] if isinstance(value, dict) else value
            return len(value) > LONGEST or any(map(self._hides, contents))
        if isinstance(value, partial):
            return any(map(self._hides, (value.func, value.args, value.keywords)))
        if isinstance(value, type):
            has_values = not issubclass(value, Enum) and any(map(_has_values, _foreign(value)))
            return has_values or self._class_hides(value)
        if isinstance(value, MethodType):
            return self._is_hidden(value.__self__) or self._hides(value.__func__)
        if isinstance(value, FunctionType):
            return self._function_hides(value, self._is_code)
        if isinstance(value, CODE):
            return self._is_hidden(getattr(value, "__self__", None))
        if is_read(value):
            return not _is_class_of_library(type(value)) and self._object_hides(value)
        return not (callable(value) and _is_class_of_library(type(value)))

    def _hides_local(self, value: Any) -> bool:
        """Whether a value is a local function that may have a state. Kernels of libraries are globals of a module."""
        if isinstance(value, partial):
            return any(map(self._hides_local, (value.func, *value.args, *value.keywords.values())))
        if not isinstance(value, FUNCTIONS) or is_of_library(value):
            return False
        return getattr(sys.modules.get(value.__module__), value.__name__, None) is not value and self._hides(value)

    def _is_hidden(self, owner: object) -> bool:
        """Whether the object that a method is bound to is not compared."""
        if owner is None or id(owner) in self._compared or type(owner).__name__ in ("module", "PyCapsule"):
            return False
        return not isinstance(owner, type) or self._hides(owner)

    def _object_hides(self, value: object) -> bool:
        has_slots = any(map(_has_slots, type(value).__mro__))
        return has_slots or self._class_hides(type(value)) or any(map(self._hides, vars(value).values()))

    def _class_hides(self, cls: type) -> bool:
        return any(self._method_hides(function) for base in _foreign(cls) for function in _methods(base).values())

    def _method_hides(self, method: FunctionType) -> bool:
        """Whether a method may have a state. Fixed values that it closes over, such as a decorator's, do not count."""
        return self._function_hides(method, self._is_fixed)

    def _function_hides(self, function: FunctionType, is_harmless: Callable[[object], bool]) -> bool:
        closure_contents = [*_closed_over(function)]
        if is_of_library(function):
            functions = filter(callable, closure_contents)
            return any(
                self._hides(captured_function)
                for captured_function in functions
                if not _is_method_of_library(captured_function)
            )
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        has_attributes = any(not name.startswith("__") for name in vars(function))
        if has_attributes or not all(map(self._is_fixed, defaults)) or not all(map(is_harmless, closure_contents)):
            return True
        return any(self._global_hides(value, function) for value in _globals_read(function))

    def _global_hides(self, value: Any, reader: FunctionType) -> bool:
        """Whether a global that a function reads may have a state, or may be assigned another value."""
        if isinstance(value, ModuleType):
            return value.__name__ in VARYING or not _is_installed(value.__name__)
        if isinstance(value, type | FunctionType | CODE):
            is_of_other_package = _package(value.__module__) != _package(reader.__module__)
            return not (is_of_other_package and _is_installed(value.__module__)) and self._hides(value)
        if isinstance(value, Tensor | nn.Module) or not callable(value):
            return not isinstance(value, logging.Logger)
        return not _is_class_of_library(type(value))

    def _is_code(self, value: object) -> bool:
        """Whether a value that a function closes over is code without a state."""
        is_function = isinstance(value, type | FunctionType | CODE)
        return isinstance(value, ModuleType) or (is_function and not self._hides(value))

    def _is_fixed(self, value: object) -> bool:
        """Whether a value cannot change."""
        if isinstance(value, tuple):
            return all(map(self._is_fixed, value))
        return type(value) in VALUES or isinstance(value, Enum) or self._is_code(value)


def _closed_over(function: FunctionType) -> Iterator[object]:
    """The values that a function closes over, without its `__class__`."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name != "__class__":
            yield _content(cell)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the cell is still empty
        return ...


def _globals_read(function: FunctionType) -> Iterator[object]:
    """The values of the global variables that a function reads, without built-ins and dunder names."""
    names = (name for name in _global_names(function.__code__) if not name.startswith("__"))
    return (function.__globals__[name] for name in names if name in function.__globals__)


@lru_cache
def _global_names(code: CodeType) -> frozenset[str]:
    """The names of the global variables that code reads, including the functions inside it."""
    nested_codes = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    loaded_names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return frozenset(loaded_names.union(*map(_global_names, nested_codes)))


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_installed(module: str | None) -> bool:
    """Whether a module is part of Python's library or an installed package, not a file that a user edits."""
    package = _package(module)
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return package in CLOSED or bool({"site-packages", "dist-packages"}.intersection(Path(file).parts))


def _methods(cls: type) -> dict[str, FunctionType]:
    """The functions that a class itself defines, without those that no pass calls (`__init__`, ...)."""
    functions = {name: _function_of(value) for name, value in vars(cls).items()}
    return {
        name: function
        for name, function in functions.items()
        if isinstance(function, FunctionType) and (not name.startswith("__") or name in ("__call__", "__getattr__"))
    }


def _function_of(attribute: Any) -> object:
    """The function inside a static method, class method or property; other attributes as they are."""
    if isinstance(attribute, staticmethod | classmethod):
        return attribute.__func__
    if isinstance(attribute, property):
        return attribute.fget
    return attribute.func if isinstance(attribute, cached_property) else attribute


def _has_values(cls: type) -> bool:
    """Whether a class itself defines attributes that are not code."""
    return any(not name.startswith("__") and not is_code_of_class(value) for name, value in vars(cls).items())


def _has_slots(cls: type) -> bool:
    """Whether a class itself defines slots, which are not in `__dict__`."""
    slots = vars(cls).get("__slots__", ())
    return any(not name.startswith("__") for name in ([slots] if isinstance(slots, str) else slots))


def _is_method_of_library(value: object) -> bool:
    return isinstance(value, MethodType) and is_of_library(value)


def _is_class_of_library(cls: type) -> bool:
    return f"{cls.__module__}.".startswith(LIBRARIES)


def is_read(value: object) -> bool:
    """Whether a `Fingerprint` compares the attributes of an object."""
    if isinstance(value, nn.Module | PreTrainedConfig | SimpleNamespace):
        return True
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and not isinstance(value, type) and package not in CLOSED


def foreign_classes(value: object) -> tuple[type, ...]:
    """The classes of an object that are from outside of known libraries."""
    return _foreign(type(value))


@lru_cache
def _foreign(cls: type) -> tuple[type, ...]:
    packages = ((base, f"{base.__module__}.") for base in cls.__mro__)
    return tuple(base for base, name in packages if not name.startswith(KNOWN) and name.partition(".")[0] not in CLOSED)


def is_code_of_class(value: object) -> bool:
    """Whether a class attribute is code, which is compared by identity."""
    return callable(value) or isinstance(value, DESCRIPTORS)


def own_hooks(module: nn.Module) -> tuple[object, ...]:
    """The forward hooks of a module itself."""
    return (*module._forward_pre_hooks.values(), *module._forward_hooks.values())


def global_hooks() -> tuple[object, ...]:
    """The forward hooks of all modules."""
    return *torch_modules._global_forward_pre_hooks.values(), *torch_modules._global_forward_hooks.values()


def is_patched(cls: type[nn.Module]) -> bool:
    """Whether the `forward` of a class is foreign to libraries, and closes over values or is from another module."""
    owner = next(base for base in cls.__mro__ if "forward" in vars(base))
    forward = vars(owner)["forward"]
    if is_of_library(forward):
        return False
    closure_names = getattr(getattr(forward, "__code__", None), "co_freevars", ())
    return getattr(forward, "__globals__", {}).get("__name__") != owner.__module__ or not {*closure_names} <= {
        "__class__"
    }


def is_of_library(function: Any) -> bool:
    """Whether a callable is defined in one of `LIBRARIES`, even if `functools.wraps` names another module."""
    while isinstance(function, partial):
        function = function.func
    namespace = getattr(getattr(function, "__func__", function), "__globals__", None)
    module = namespace["__name__"] if namespace else type(function).__module__
    return f"{module}.".startswith(LIBRARIES)
