"""A fingerprint of a module, which shows whether a backend made for it and rows of earlier texts are still valid.

Fused layers bypass the module's own `forward`, and compute with copies of weights and tables of rotary angles. Rows of
earlier texts were computed by the module as it was then. So a module is compared with its fingerprint whenever a text
begins (`SelectedBackend`). The fingerprint differs after

- a hook was added or removed, on any submodule or globally, and after a module or its class got another `forward`;
- a submodule was replaced or got another class (adapters, parametrizations);
- a value that decides a text was changed: a number, string or tensor. It may be an attribute, or be in a list, set or
  dict, in the config, or in an object or module that is a plain attribute. This includes adapters that are switched,
  scaled or disabled;
- a parameter was replaced; any tensor was moved or assigned by `.data =`, which changes its address;
- a tensor was edited in place (`load_state_dict`, an optimiser, any operation under `torch.no_grad`), which raises its
  version; tensors made in inference mode have none;
- an edit that raises no version changed an entry that is compared (`weight.data.mul_(2)`, any edit of a tensor made in
  inference mode). At least one entry in each row and column of a matrix is compared, and all of a vector.

It does not notice

- an edit through `.data` of a few entries of a matrix;
- changes of methods of a class other than `forward`, of functions that a `forward` calls, and of globals it reads;
- changes inside objects that are compared by identity, and in containers of more than `LONGEST` entries;
- any change while a text is being generated.

If hooks, functions or layers from outside of known libraries have such state, `unseen` names it
(`drafttree.models.module.unseen_state`).
"""

import math
import operator
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from drafttree.models.module.contents import Contents
from drafttree.models.module.released import Release
from drafttree.models.module.unseen_state import unseen_state

SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer types by size in bytes. Entries are compared as these integers, so that NaN equals itself."""


class Fingerprint:
    """The state of a module when the fingerprint was taken.

    Weights that layers have released (`drafttree.models.module.released`) stay released; those that were given back are
    released again if possible.

    Args:
        module: the module to compare later. The fingerprint keeps the memory of its tensors, so that no other tensor
            gets their address.

    Attributes:
        unseen: a hook, function or attribute of the module that may have a state which is not compared, None for none.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._contents = Contents(module)
        self._released = [tensor for tensor in self._contents.tensors if isinstance(tensor, Release)]
        tensors = [tensor for tensor in self._contents.tensors if isinstance(tensor, Tensor)]
        self._plain_tensors = [tensor for tensor in tensors if is_plain(tensor) and not tensor.is_mkldnn]
        self._versioned_tensors = [tensor for tensor in self._plain_tensors if version(tensor) is not None]
        views = defaultdict[Any, list[Tensor]](list)
        for tensor in filter(_is_readable, self._plain_tensors):
            integer_type = SAME_SIZE[tensor.itemsize]
            views[tensor.device, integer_type] += [view.view(integer_type) for view in samples(tensor)]
        self._views = [*views.values()]
        self._members = self._contents.members()
        self._state = self._read_state()
        self._entries = self._read_entries()
        self.unseen = unseen_state(module, self._contents.owners)

    def matches(self) -> bool:
        """Whether the module is as it was when the fingerprint was taken."""
        for release in self._released:
            release.take_back()
        members = self._contents.members()
        if self._read_state() != self._state or not all(map(torch.equal, self._read_entries(), self._entries)):
            return False
        same_members = len(members) == len(self._members) and all(map(operator.is_, members, self._members))
        if same_members and all(release.is_released for release in self._released):
            return True
        fingerprint = Fingerprint(self._module)
        if not self._equals(fingerprint):
            return False
        vars(self).update(vars(fingerprint))
        return True

    def _equals(self, current: "Fingerprint") -> bool:
        """Whether replaced objects equal those before them. The tensors of `self` must be unchanged."""
        old_tensors, new_tensors = self._contents.tensors, current._contents.tensors
        if len(old_tensors) != len(new_tensors) or self._contents.facts != current._contents.facts:
            return False
        return all(map(_is_same, old_tensors, new_tensors))

    def _read_state(self) -> tuple[list[int], list[int]]:
        """The addresses of plain tensors, and the versions of those that have one."""
        addresses = list(map(Tensor.data_ptr, self._plain_tensors))
        versions = list(map(operator.attrgetter("_version"), self._versioned_tensors))
        return addresses, versions

    def _read_entries(self) -> list[Tensor]:
        """The samples of all tensors, concatenated by device and size of an entry."""
        return [torch.cat(list(map(torch.flatten, views))) for views in self._views]


def _is_same(old_tensor: Tensor | Release, new_tensor: Tensor | Release) -> bool:
    """Whether a tensor is the same as before. A tensor that is not a parameter may be replaced by an equal one."""
    if old_tensor is new_tensor:
        return True
    if isinstance(old_tensor, Release):
        return old_tensor.is_of(new_tensor)
    if isinstance(new_tensor, Release):
        return False
    if isinstance(old_tensor, nn.Parameter) or not (is_plain(old_tensor) and is_plain(new_tensor)):
        return False
    old_layout = old_tensor.shape, old_tensor.dtype, old_tensor.device
    new_layout = new_tensor.shape, new_tensor.dtype, new_tensor.device
    return old_layout == new_layout and _is_readable(old_tensor) and torch.equal(old_tensor, new_tensor)


def _is_readable(tensor: Tensor) -> bool:
    """Whether single entries of a tensor can be read."""
    is_strided = tensor.layout is torch.strided and tensor.itemsize in SAME_SIZE
    return is_strided and not tensor.is_meta and not tensor.is_quantized and tensor.numel() > 0


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is torch's own, neither quantised nor distributed."""
    return type(tensor) in (nn.Parameter, Tensor)


def version(tensor: Tensor) -> int | None:
    """The number of in-place edits of a tensor. None if torch does not count them: for tensors made in inference mode.

    `is_inference` does not tell which tensors those are, since assigning `.data` resets it but not the counter.
    """
    try:
        return tensor._version
    except RuntimeError:
        return None


def samples(weight: Tensor) -> list[Tensor]:
    """Views of entries of a weight: at least one in each row and column of a matrix, and all of a vector.

    Weights of more dimensions count as matrices.
    """
    data = weight.data
    if data.ndim < 2:
        return [data.view(-1)]
    if data.ndim > 2 and not data.is_contiguous():
        return [view for matrix in data for view in samples(matrix)]
    data = data.view(_nearest_to_square(data.shape))
    data = data if data.shape[0] <= data.shape[1] else data.t()
    rows, columns = data.shape
    remainder = columns % rows
    squares = data[:, : columns - remainder].unflatten(1, (-1, rows)).diagonal(0, 0, 2)
    return [squares, data.diagonal(columns - remainder)] if remainder else [squares]


def _nearest_to_square(shape: torch.Size) -> tuple[int, int]:
    """The matrix shape of a tensor that is nearest to a square: there few samples cover all rows and columns."""
    cuts = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(1, len(shape))]
    return min(cuts, key=lambda sizes: max(sizes) / min(sizes))


ModuleT = TypeVar("ModuleT", bound=nn.Module)
BackendT = TypeVar("BackendT")


class SelectedBackend(Generic[ModuleT, BackendT]):
    """Holds the backend of a module, and selects another one after the module has changed.

    Args:
        module: the module.
        select: makes a backend for the module.

    Attributes:
        backend: the backend for the module's state at the last `refresh`.
        unseen: `Fingerprint.unseen` at the last `refresh`.
    """

    def __init__(self, module: ModuleT, select: Callable[[ModuleT], BackendT]) -> None:
        self._module = module
        self._select = select
        self._make()

    def refresh(self) -> bool:
        """Select a backend again if the module has changed, and return whether it has.

        Raises:
            ModelError: no backend serves the module any more.
        """
        if hasattr(self, "backend") and self._fingerprint.matches():
            return False
        self.replace()
        return True

    def replace(self) -> None:
        """Select a backend again; errors are those of `refresh`."""
        for name in ("backend", "_fingerprint"):  # both hold weights, which are freed before new ones are made
            vars(self).pop(name, None)
        self._make()

    def accept(self) -> None:
        """Take a new fingerprint after a pass of the module itself, to which transformers may have added hooks."""
        if not self._fingerprint.matches():
            self._fingerprint = Fingerprint(self._module)

    def _make(self) -> None:
        self.backend = self._select(self._module)
        self._fingerprint = Fingerprint(self._module)

    @property
    def unseen(self) -> str | None:
        return self._fingerprint.unseen
