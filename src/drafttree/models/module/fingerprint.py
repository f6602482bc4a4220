"""A fingerprint of a module, which tells whether a backend made from it still computes what the module does.

Fused layers bypass the module's own `forward`, and on a CPU they compute with copies of its weights. So a backend is
compared with its module whenever a text begins (`SelectedBackend`). The fingerprint differs after

- a hook was added or removed, on any submodule or globally, and after an instance got a `forward` of its own;
- a submodule was replaced, got another class (adapters, parametrizations) or another number as an attribute (the scale
  of its scores, training or evaluation);
- a parameter or buffer was replaced, moved or assigned by `.data =`, which changes its address;
- one was edited in place (`load_state_dict`, an optimiser, any operation under `torch.no_grad`), which raises its
  version; tensors made in inference mode have none;
- an edit that raises no version (`weight.data.mul_(2)`, any edit of such a tensor) changed an entry that is compared:
  on a CPU an entry of every row and of every column of every weight, and vectors as a whole. On other devices no weight
  is copied, so none has to be compared.

It does not notice an edit through `.data` of a few entries of a matrix; a method that is replaced on a class; and any
change while a text is being generated.
"""

import math
import operator
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

CLASSES = (
    "torch.nn.modules.",
    "transformers.models.",
    "transformers.activations",
    "drafttree.drafters.",
    "drafttree.models.fused.",
)
"""Packages whose module classes count as plain: not peft, bitsandbytes, torch's parametrizations ..."""
INERT_HOOKS = "transformers.utils.output_capturing"
"""transformers leaves hooks behind that do nothing outside of a call with `output_hidden_states`."""
SETTINGS = (bool, int, float)
"""Types of attributes that decide what a layer computes, such as `training` and `scaling`."""


class Fingerprint:
    """The state of a module when the fingerprint was taken.

    It is compared once a text and not in every round: see `docs/performance.md` for what that costs.

    Args:
        module: the module to compare with later. The memory of its tensors is kept, so that no other tensor gets their
            address.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = list(module.modules())
        self._tables = [table for part in self._parts for table in _tables(part) if table]
        self._hooks = [table for part in self._parts for table in (part._forward_pre_hooks, part._forward_hooks)]
        self._hooks += [global_hooks._global_forward_pre_hooks, global_hooks._global_forward_hooks]
        self._members = self._read_members()
        tensors = [
            tensor
            for part in self._parts
            for tensor in _saved_tensors(part)
            if is_plain(tensor) and not tensor.is_mkldnn
        ]
        self._tensors = tensors
        self._versioned = [tensor for tensor in tensors if version(tensor) is not None]
        self._state = self._read_state()
        sampled = [each for each in tensors if each.is_cpu and each.is_floating_point() and each.numel()]
        self._samples = [view for tensor in sampled for view in samples(tensor)]
        self._entries = self._read_entries()

    def matches(self) -> bool:
        """Whether the module is as it was."""
        members = self._read_members()
        if len(members) != len(self._members) or not all(map(operator.is_, members, self._members)):
            return False
        return self._read_state() == self._state and torch.equal(self._read_entries(), self._entries)

    def _read_members(self) -> list[object]:
        """All submodules, parameters, buffers and hooks, global hooks included."""
        return list(chain.from_iterable(map(dict.values, (*self._tables, *filter(None, self._hooks)))))

    def _read_state(self) -> tuple[object, ...]:
        """Classes, settings and own forwards of all submodules; addresses and versions of all tensors."""
        modes = ["forward" in part.__dict__ for part in self._parts]
        settings = [[value for value in vars(part).values() if type(value) in SETTINGS] for part in self._parts]
        versions = list(map(operator.attrgetter("_version"), self._versioned))
        addresses = list(map(Tensor.data_ptr, self._tensors))
        return list(map(type, self._parts)), modes, settings, addresses, versions

    def _read_entries(self) -> Tensor:
        """The bytes of all samples, so that NaN equals itself."""
        return torch.cat(self._samples).view(torch.uint8) if self._samples else torch.zeros(0)


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
    rows, columns = _nearest_to_square(data.shape)
    data = data.view(rows, columns)
    step = min(rows, columns)
    offsets = (*range(0, -rows, -step), *range(step, columns, step))
    return [data.diagonal(offset) for offset in offsets]


def _nearest_to_square(shape: torch.Size) -> tuple[int, int]:
    """Rows and columns of a tensor cut between two of its dimensions, such that few diagonals cross them all."""
    cuts = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(1, len(shape))]
    return min(cuts, key=lambda sizes: max(sizes) / min(sizes))


def own_hooks(part: nn.Module) -> tuple[object, ...]:
    """The forward hooks of a module itself."""
    return (*part._forward_pre_hooks.values(), *part._forward_hooks.values())


def _tables(part: nn.Module) -> tuple[dict, ...]:
    return part._modules, part._parameters, part._buffers


def _saved_tensors(part: nn.Module) -> Iterator[Tensor]:
    """A module's own parameters and buffers. Those not saved hold what it computes itself, like rotary frequencies."""
    buffers = [tensor for name, tensor in part._buffers.items() if name not in part._non_persistent_buffers_set]
    return (tensor for tensor in (*part._parameters.values(), *buffers) if tensor is not None)


def is_plain_module(module: nn.Module) -> bool:
    """Whether a module in evaluation mode has neither hooks nor layers or weights of another kind than its class's."""
    hooks = global_hooks._global_forward_hooks, global_hooks._global_forward_pre_hooks
    return not any(hooks) and all(_is_plain_part(part) for part in module.modules())


def _is_plain_part(part: nn.Module) -> bool:
    replaced = "forward" in part.__dict__ or hasattr(part, "_hf_hook") or part.training
    hooked = any(getattr(hook, "__module__", None) != INERT_HOOKS for hook in own_hooks(part))
    known = type(part).__module__.startswith(CLASSES) and (type(part) is nn.Linear or not isinstance(part, nn.Linear))
    tensors = chain(part._parameters.values(), part._buffers.values())
    return known and not replaced and not hooked and all(each is None or is_plain(each) for each in tensors)


ModuleT = TypeVar("ModuleT", bound=nn.Module)
BackendT = TypeVar("BackendT")


class SelectedBackend(Generic[ModuleT, BackendT]):
    """Holds a backend and compares its module with a fingerprint.

    Args:
        module: the weights and what is computed with them.
        select: makes a backend for the module.

    Attributes:
        backend: the backend of the module as it was at the last `refresh`.
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
        vars(self).pop("backend", None)  # its copies of the weights go before new ones are made
        self._make()
        return True

    def _make(self) -> None:
        self.backend = self._select(self._module)
        self._fingerprint = Fingerprint(self._module)
