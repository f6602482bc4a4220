"""Weights of embedded models that several loaded models share until one of them is changed.

Each model is a module of its own, with hooks, adapters and layers of its own. Its parameters are a private mapping of a
file in memory: models have the same pages in common, and the operating system copies a page for the model that writes
to it. So a change of one model, in place too, is never seen by another. The file goes with the last of its models.
"""

import copy
import mmap
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

ALIGNMENT = 64
"""Bytes at whose multiples weights begin, as torch's own allocations do."""
_files = weakref.WeakValueDictionary[object, "WeightFile"]()
_loading = threading.Lock()


def shared_model(key: object, load: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    """A model whose weights are those of the other models of the same key, which are loaded once.

    Where the system has no files in memory (macOS, Windows), each has weights of its own.

    Args:
        key: what decides the weights: the model's name and the dtype.
        load: loads the model, on the CPU.
    """
    if not hasattr(os, "memfd_create"):
        return load()
    with _loading:
        file = _files.get(key)
        if file is None:
            file = _files[key] = WeightFile(load())
        model = file.new_model()
    weakref.finalize(model, file.keep)
    return model


class Place(NamedTuple):
    """Where a parameter lies in the file, in bytes, and how it is laid out."""

    begin: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


class WeightFile:
    """The parameters of a model in a file in memory; those that lie side by side, as fused layers need them, stay so.

    Args:
        model: the model; its weights are copied.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._file = os.memfd_create("drafttree weights")
        weakref.finalize(self, os.close, self._file)
        self._places: dict[str, Place] = {}
        self._size = reached = 0
        shift = 0  # from addresses to the file
        parameters = sorted(model.named_parameters(), key=lambda named: named[1].data_ptr())
        for name, each in parameters:
            content = _bytes(each.detach())
            if each.data_ptr() > reached:
                shift = -(-self._size // ALIGNMENT) * ALIGNMENT - each.data_ptr()
            reached = max(reached, each.data_ptr() + len(content))
            self._size = reached + shift
            self._places[name] = Place(each.data_ptr() + shift, each.dtype, each.shape, each.stride())
            _write(self._file, each.data_ptr() + shift, content)
        empty: dict[int, Any] = {
            id(each): nn.Parameter(torch.empty(0, dtype=each.dtype), each.requires_grad) for _, each in parameters
        }
        self._model = copy.deepcopy(model, memo=empty)

    def new_model(self) -> PreTrainedModel:
        """A copy of the model whose parameters are a private mapping of the file."""
        model = copy.deepcopy(self._model)
        content = torch.frombuffer(mmap.mmap(self._file, self._size, mmap.MAP_PRIVATE), dtype=torch.uint8)
        for name, place in self._places.items():
            values, first = content.view(place.dtype), place.begin // place.dtype.itemsize
            model.get_parameter(name).data = values.as_strided(place.shape, place.stride, first)
        return model

    def keep(self) -> None:
        """Do nothing; who is to call it, when a model goes, holds the file until then."""


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes from a tensor's first element to its last, with those that other tensors have in between."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach,), (1,)).view(torch.uint8)


def _write(file: int, offset: int, content: Tensor) -> None:
    view = content.numpy().data
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written
