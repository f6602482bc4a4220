"""Whether a module does only what its classes define, so that other code may run its layers."""

import inspect
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from types import CodeType, FunctionType

from torch import nn

from drafttree.models.module.fingerprint import is_plain
from drafttree.models.module.released import ReleasedWeight
from drafttree.models.module.unseen_state import global_hooks, is_patched, own_hooks

CLASSES = (
    "torch.nn.modules.",
    "transformers.models.",
    "transformers.activations",
    "drafttree.drafters.",
    "drafttree.models.",
)
"""Packages whose module classes count as plain. Others do not: peft, bitsandbytes, torch's parametrizations ..."""
INERT_HOOKS = "transformers.utils.output_capturing"
"""Module of hooks that transformers leaves behind, which do nothing without `output_hidden_states`."""


def why_not_plain(module: nn.Module, submodule: nn.Module | None = None) -> str | None:
    """Why a module may compute something else than its classes define, None if it cannot.

    Args:
        module: the module.
        submodule: the only part that counts, with all that contains it; None for the whole module.

    Reasons are hooks, a replaced forward, unknown classes of layers or weights, and training mode in layers that depend
    on it.
    """
    if global_hooks():
        return "a hook of all modules is registered"
    submodule_layers = set(submodule.modules()) if submodule else set[nn.Module]()
    for name, layer in module.named_modules():
        if submodule and layer not in submodule_layers and submodule not in set(layer.modules()):
            continue
        if reason := _peculiarity(name or type(module).__name__, layer):
            return reason
    return None


def is_plain_module(module: nn.Module) -> bool:
    """Whether a module does only what its classes define."""
    return why_not_plain(module) is None


def _peculiarity(name: str, layer: nn.Module) -> str | None:
    cls = type(layer)
    if not cls.__module__.startswith(CLASSES) or (isinstance(layer, nn.Linear) and cls is not nn.Linear):
        return f"{name} is of the class {cls.__name__}, which is not one of transformers' own layers"
    if "forward" in vars(layer):
        return f"the forward of {name} is replaced"
    if is_patched(cls):
        return f"the forward of the class {cls.__name__} is replaced"
    if hasattr(layer, "_hf_hook") or any(getattr(hook, "__module__", None) != INERT_HOOKS for hook in own_hooks(layer)):
        return f"{name} has a forward hook"
    if layer.training and _reads_mode(cls):
        return f"{name} is in training mode; call its eval()"
    for tensor in chain(layer._parameters.values(), layer._buffers.values()):
        if not (tensor is None or isinstance(tensor, ReleasedWeight) or is_plain(tensor)):
            return f"{name} has a weight of the type {type(tensor).__name__}"
    return None


@lru_cache
def _reads_mode(cls: type[nn.Module]) -> bool:
    """Whether methods of a class read `training`, as those of dropout do."""
    return any("training" in code.co_names for code in _codes(cls))


def _codes(cls: type[nn.Module]) -> Iterator[CodeType]:
    """The code of the methods of a class, without those of `nn.Module`."""
    for base in cls.__mro__[: cls.__mro__.index(nn.Module)]:
        for method in vars(base).values():
            if isinstance(method, FunctionType):
                for function in (method, inspect.unwrap(method)):
                    yield from _with_inner(function.__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
