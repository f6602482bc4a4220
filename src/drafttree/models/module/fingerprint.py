"""A fingerprint of a module, which tells whether what was derived from it and kept of its texts still holds.

Fused layers bypass the module's own `forward`, they compute with copies of weights and tables of rotary angles, and the
rows of earlier texts are those of the module as it was. So a module is compared with its fingerprint whenever a text
begins (`SelectedBackend`). The fingerprint differs after

- a hook was added or removed, on any submodule or globally, and after a module or its class got another `forward`;
- a submodule was replaced or got another class (adapters, parametrizations);
- any value that decides a text was changed, wherever a module holds it: numbers, strings and tensors as attributes, in
  lists, sets and dicts, in its config, and in objects and modules that it holds as plain attributes. So are adapters
  noticed that are switched, scaled or disabled;
- a parameter was replaced; any tensor was moved or assigned by `.data =`, which changes its address;
- a tensor was edited in place (`load_state_dict`, an optimiser, any operation under `torch.no_grad`), which raises its
  version; tensors made in inference mode have none;
- an edit that raises no version (`weight.data.mul_(2)`, any edit of such a tensor) changed an entry that is compared:
  an entry of every row and of every column of a matrix, and vectors as a whole.

It does not notice

- an edit through `.data` of a few entries of a matrix;
- another method than `forward` that is replaced on a class, and functions and globals that a `forward` calls or reads;
- what an object deep inside a module holds, if that is a numpy array, has `__slots__`, or is of the standard library,
  torch or transformers and no module or config; and containers of more than `LONGEST` entries;
- any change while a text is being generated.

What hooks and `forward` functions of no library close over is not looked at, nor such an object as an attribute of a
layer of no library: `unseen` names them.
"""

import math
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from types import GetSetDescriptorType, SimpleNamespace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks
from transformers import PreTrainedConfig

from drafttree.models.module.released import Released, ReleasedParameters, look

CLASSES = (
    "torch.nn.modules.",
    "transformers.models.",
    "transformers.activations",
    "drafttree.drafters.",
    "drafttree.models.",
)
"""Packages whose module classes count as plain: not peft, bitsandbytes, torch's parametrizations ..."""
INERT_HOOKS = "transformers.utils.output_capturing"
"""transformers leaves hooks behind that do nothing outside of a call with `output_hidden_states`."""
LIBRARIES = ("torch.", "transformers.", "accelerate.", "peft.")
"""Packages whose hooks and replaced `forward` functions have no state but what modules hold."""
KNOWN = (*LIBRARIES, "builtins", "drafttree.", "transformers_modules.", "bitsandbytes.", "torchao.")
"""Packages whose classes of modules hold all that they read in their instances."""
VALUES = {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size}
UNREAD = {name for name in vars(nn.Module()) if "hook" in name} | {
    *("generation_config", "_attn_implementation_internal", "_attn_implementation"),
    *("_attention_before_drafttree", "_verified_by_drafttree"),
}
"""Attributes that decide no text: hooks, whose tables are compared apart, and the attention that passes switch."""
CLOSED = {*sys.stdlib_module_names, "drafttree", "numpy", "tokenizers", "torch", "transformers"}
"""Packages whose objects are compared as wholes, unless they are modules or configs."""
AS_GIVEN_BACK = {ReleasedParameters: dict, Released: nn.Parameter}
"""Types that are compared as those of the layer with its weight."""
LONGEST = 1 << 16
"""Entries of the largest list or dict whose contents are compared."""
SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of whole numbers that entries are compared as, by their size in bytes, so that NaN equals itself."""


class Fingerprint:
    """The state of a module when the fingerprint was taken.

    Weights that layers have released (`drafttree.models.module.released`) are not given back for it; those that were
    given back are released again where that can be.

    It is compared once a text and not in every round: see `docs/performance.md` for what that costs.

    Args:
        module: the module to compare with later. The memory of its tensors is kept, so that no other tensor gets their
            address.

    Attributes:
        unseen: where the module has a hook or a `forward` that may have a state of its own, None if nowhere.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._facts: list[object] = [*map(id, _global_hooks())]
        self._dicts: list[dict] = [global_hooks._global_forward_pre_hooks, global_hooks._global_forward_hooks]
        self._lists: list[Iterable] = []
        self._owners: list[object] = []
        self._foreign: dict[type, None] = {}
        self._tensors: list[Tensor | Released] = []
        self._walk()
        parts = [owner for owner in self._owners if isinstance(owner, nn.Module)]
        self._kinds: list[Any] = [*{type(part) for part in parts}]
        self._released = [each.owner for each in self._tensors if isinstance(each, Released)]
        tensors = [each for each in self._tensors if isinstance(each, Tensor)]
        self._plain = [tensor for tensor in tensors if is_plain(tensor) and not tensor.is_mkldnn]
        self._versioned = [tensor for tensor in self._plain if version(tensor) is not None]
        views = defaultdict[Any, list[Tensor]](list)
        for tensor in filter(_is_readable, self._plain):
            whole = SAME_SIZE[tensor.itemsize]
            views[tensor.device, whole] += [view.view(whole) for view in samples(tensor)]
        self._views = [*views.values()]
        self._members, self._state, self._entries = self._read_members(), self._read_state(), self._read_entries()
        self.unseen = _unseen(module, parts)

    def matches(self) -> bool:
        """Whether the module is as it was."""
        for each in self._released:
            each.take_back()
        members = self._read_members()
        if self._read_state() != self._state or not all(map(torch.equal, self._read_entries(), self._entries)):
            return False
        if len(members) == len(self._members) and all(map(operator.is_, members, self._members)):
            return True
        now = Fingerprint(self._module)
        if not self._equals(now):
            return False
        vars(self).update(vars(now))
        return True

    def _walk(self) -> None:
        """Find all that the module holds, and write down what it is, in one order."""
        facts, places, scratch = self._facts, dict[int, int](), set[int]()
        pending: list[Any] = [self._module]
        while pending:
            value = pending.pop()
            facts.append(AS_GIVEN_BACK.get(type(value), type(value)))
            if type(value) in VALUES:
                facts.append(value)
            elif id(value) in places:
                facts.append(places[id(value)])
            elif isinstance(value, Tensor | Released):
                places[id(value)] = len(places)
                self._tensors += [value] if id(value) not in scratch else []
            elif isinstance(value, ReleasedParameters):  # given back it is replaced
                places[id(value)] = len(places)
                own = value.look()
                facts.append(len(own))
                pending += own
                pending += own.values()
            elif isinstance(value, dict | list | tuple | set | frozenset) and len(value) <= LONGEST:
                places[id(value)] = len(places)
                facts.append(len(value))
                pending += value
                if isinstance(value, dict):
                    pending += value.values()
                    self._dicts.append(value)
                elif not isinstance(value, tuple):
                    self._lists.append(value)
            elif _is_read(value):
                places[id(value)] = len(places)
                read = {name: each for name, each in vars(value).items() if name not in UNREAD}
                facts.append([*read])
                pending += read.values()
                self._owners.append(value)
                self._dicts.append(vars(value))
                if isinstance(value, nn.Module):
                    scratch.update(map(id, _working_buffers(value)))
                    for kind in _foreign_classes(value):
                        if kind not in self._foreign:
                            self._foreign[kind] = None
                            pending += [each for each in vars(kind).values() if not _is_code(each)]
                    facts.append([*map(id, (type(value).forward, *own_hooks(value)))])
                    self._dicts += value._forward_pre_hooks, value._forward_hooks
            else:
                facts.append(id(value))

    def _equals(self, now: "Fingerprint") -> bool:
        """Whether all that was replaced is equal to what it was, given that the tensors of then are unchanged."""
        same_count = len(self._tensors) == len(now._tensors)
        return same_count and self._facts == now._facts and all(map(_is_same, self._tensors, now._tensors))

    def _read_members(self) -> list[object]:
        """All that the module holds, classes, hooks and the `forward` functions of classes included."""
        beside_weights = (owner.parameters for owner in self._released)
        # of a layer that has released its weight again, the other parameters may be others than before
        dicts = [*filter(None, self._dicts), *beside_weights]
        classes = map(type, self._owners)
        own = (vars(kind).values() for kind in self._foreign)
        return list(
            chain(*map(dict.values, dicts), *dicts, *self._lists, classes, *own, (kind.forward for kind in self._kinds))
        )

    def _read_state(self) -> tuple[list[int], list[int]]:
        """Addresses and versions of all tensors."""
        return list(map(Tensor.data_ptr, self._plain)), list(map(operator.attrgetter("_version"), self._versioned))

    def _read_entries(self) -> list[Tensor]:
        """The samples of all tensors, by device and size of a number."""
        return [torch.cat(list(map(torch.flatten, views))) for views in self._views]


def _is_read(value: object) -> bool:
    """Whether the attributes of an object are compared."""
    if isinstance(value, nn.Module | PreTrainedConfig | SimpleNamespace):
        return True
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and not isinstance(value, type) and package not in CLOSED


def _foreign_classes(part: nn.Module) -> list[type]:
    """Those of a module's classes that no library defines."""
    return [kind for kind in type(part).__mro__ if not f"{kind.__module__}.".startswith(KNOWN)]


def _is_code(value: object) -> bool:
    """Whether a class attribute decides nothing but by being another object."""
    return callable(value) or isinstance(value, property | staticmethod | classmethod | GetSetDescriptorType)


def _is_opaque(value: object) -> bool:
    """Whether an attribute may hold values that are not compared."""
    compared = type(value) in VALUES or isinstance(value, Tensor | dict | list | tuple | set | frozenset)
    return not (compared or _is_read(value) or callable(value))


def _working_buffers(part: nn.Module) -> list[Tensor]:
    """Buffers that LongRoPE writes in every pass, from others."""
    if "longrope" not in str(getattr(part, "rope_type", "")):
        return []
    named = part._buffers.items()
    return [each for name, each in named if each is not None and name.endswith("inv_freq") and "original" not in name]


def _is_same(old: Tensor | Released, new: Tensor | Released) -> bool:
    """Whether a tensor is the one that it was; one that is no parameter may have been replaced by an equal one."""
    if old is new:
        return True
    if isinstance(old, Released):
        return old.is_unchanged(new)
    if isinstance(new, Released):
        return False
    if isinstance(old, nn.Parameter) or not (is_plain(old) and is_plain(new)):
        return False
    alike = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
    return alike and _is_readable(old) and torch.equal(old, new)


def _is_readable(tensor: Tensor) -> bool:
    """Whether single entries of a tensor can be read."""
    whole = tensor.layout is torch.strided and tensor.itemsize in SAME_SIZE
    return whole and not tensor.is_meta and not tensor.is_quantized and tensor.numel() > 0


def _unseen(module: nn.Module, parts: Iterable[nn.Module]) -> str | None:
    """Where a hook or a replaced `forward` may have a state of its own, None if nowhere."""
    if not all(map(_is_of_library, _global_hooks())):
        return "a global forward hook"
    for part in parts:
        replaced = [vars(part)[name] for name in ("forward", "_old_forward") if name in vars(part)]
        for what, functions in (("the forward hook", own_hooks(part)), ("the replaced forward", replaced)):
            if not all(map(_is_of_library, functions)):
                name = next((name for name, each in module.named_modules() if each is part), "")
                return f"{what} of {name or type(part).__name__}"
        if is_patched(type(part)):
            return f"the forward of the class {type(part).__name__}"
        if _foreign_classes(part):
            hidden = (name for name, each in vars(part).items() if name not in UNREAD and _is_opaque(each))
            if (name := next(hidden, None)) is not None:
                return f"the attribute {name} of the class {type(part).__name__}"
    return None


def is_patched(kind: type[nn.Module]) -> bool:
    """Whether the `forward` of a class is no library's, and closes over values or was put there by another module."""
    owner = next(each for each in kind.__mro__ if "forward" in vars(each))
    forward = vars(owner)["forward"]
    if _is_of_library(forward):
        return False
    closes_over = getattr(getattr(forward, "__code__", None), "co_freevars", ())
    return getattr(forward, "__globals__", {}).get("__name__") != owner.__module__ or not {*closes_over} <= {
        "__class__"
    }


def _is_of_library(function: Any) -> bool:
    """Whether a function or callable object is one of `LIBRARIES`, whatever `functools.wraps` says of it."""
    while isinstance(function, partial):
        function = function.func
    space = getattr(getattr(function, "__func__", function), "__globals__", None)
    return (space["__name__"] if space else type(function).__module__).startswith(LIBRARIES)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is torch's own, neither quantised nor distributed."""
    return type(tensor) in (nn.Parameter, Tensor)


def version(tensor: Tensor) -> int | None:
    """The number of in-place edits of a tensor, None if torch does not count that: it was made in inference mode.

    `is_inference` does not tell: assigning `.data` resets it and not the counter.
    """
    try:
        return tensor._version
    except RuntimeError:
        return None


def samples(weight: Tensor) -> list[Tensor]:
    """Views of entries of a weight: one at least of every row and column of a matrix, and all of a vector.

    Weights of more dimensions count as matrices.
    """
    data = weight.data
    if data.ndim < 2:
        return [data.view(-1)]
    if data.ndim > 2 and not data.is_contiguous():
        return [view for part in data for view in samples(part)]
    data = data.view(_nearest_to_square(data.shape))
    data = data if data.shape[0] <= data.shape[1] else data.t()
    rows, columns = data.shape
    rest = columns % rows
    squares = data[:, : columns - rest].unflatten(1, (-1, rows)).diagonal(0, 0, 2)
    return [squares, data.diagonal(columns - rest)] if rest else [squares]


def _nearest_to_square(shape: torch.Size) -> tuple[int, int]:
    """Rows and columns of a tensor cut between two of its dimensions, such that few entries are in all of them."""
    cuts = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(1, len(shape))]
    return min(cuts, key=lambda sizes: max(sizes) / min(sizes))


def own_hooks(part: nn.Module) -> tuple[object, ...]:
    """The forward hooks of a module itself."""
    return (*part._forward_pre_hooks.values(), *part._forward_hooks.values())


def _global_hooks() -> tuple[object, ...]:
    return (*global_hooks._global_forward_pre_hooks.values(), *global_hooks._global_forward_hooks.values())


def is_plain_module(module: nn.Module) -> bool:
    """Whether a module in evaluation mode has neither hooks nor layers or weights of another kind than its class's."""
    return not _global_hooks() and all(_is_plain_part(part) for part in module.modules())


def _is_plain_part(part: nn.Module) -> bool:
    replaced = "forward" in vars(part) or is_patched(type(part)) or hasattr(part, "_hf_hook") or part.training
    hooked = any(getattr(hook, "__module__", None) != INERT_HOOKS for hook in own_hooks(part))
    known = type(part).__module__.startswith(CLASSES) and (type(part) is nn.Linear or not isinstance(part, nn.Linear))
    tensors = chain(look(part).values(), part._buffers.values())
    plain = (each is None or isinstance(each, Released) or is_plain(each) for each in tensors)
    return known and not replaced and not hooked and all(plain)


ModuleT = TypeVar("ModuleT", bound=nn.Module)
BackendT = TypeVar("BackendT")


class SelectedBackend(Generic[ModuleT, BackendT]):
    """Holds a backend and compares its module with a fingerprint.

    Args:
        module: the weights and what is computed with them.
        select: makes a backend for the module.

    Attributes:
        backend: the backend of the module as it was at the last `refresh`.
        unseen: as of `Fingerprint`, at the last `refresh`.
    """

    def __init__(self, module: ModuleT, select: Callable[[ModuleT], BackendT]) -> None:
        self._module = module
        self._select = select
        self._make()

    def refresh(self) -> bool:
        """Select a backend anew if the module has changed since the last time, and return whether it had.

        Raises:
            ModelError: no backend serves the module any more.
        """
        if hasattr(self, "backend") and self._fingerprint.matches():
            return False
        for name in ("backend", "_fingerprint"):  # both hold weights, which go before new ones are made
            vars(self).pop(name, None)
        self._make()
        return True

    def _make(self) -> None:
        self.backend = self._select(self._module)
        self._fingerprint = Fingerprint(self._module)

    @property
    def unseen(self) -> str | None:
        return self._fingerprint.unseen
