"""Reads folders whose linear layers are quantised; each tensor is read on access."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.drafters.formats import weight_files
from drafttree.loading.quantized.grouped_weight import GroupedWeight, block_form
from drafttree.loading.quantized.layouts import Layout, StoredLayer

COPY = "download or copy the folder again"


class _FolderTensor(NamedTuple):
    """A tensor in a folder.

    Attributes:
        shape: its shape.
        dtype: safetensors' name of its dtype.
        read: reads the tensor from its file.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


class PlainWeight:
    """A weight of a folder that is not quantised; implements `drafttree.loading.stored_blocks.StoredWeight`.

    Args:
        read_tensor: reads the tensor.
        shape: its shape.
        dtype: dtype to convert it to, if it is of floating-point numbers.

    Attributes:
        is_left_out: always False.
        is_packed: always False.
        form: always empty.
    """

    form = ""

    def __init__(self, read_tensor: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._read = read_tensor
        self.shape = shape
        self._dtype = dtype
        self.part_shapes = {"": shape}
        self.is_left_out = self.is_packed = False

    def __getitem__(self, _: object) -> Tensor:
        tensor = self._read()
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def blocks(self) -> Tensor:
        raise AssertionError("weights that are not quantised have no blocks")

    def stacks(self) -> list[Tensor]:
        raise AssertionError("weights that are not quantised have no blocks")


class QuantizedWeight:
    """A quantised weight of a folder; implements `drafttree.loading.stored_blocks.StoredWeight`.

    Args:
        layer: tensors of the layer.
        layout: layout of the tensors.
        dtype: dtype to dequantise to.

    Raises:
        ModelError: the tensors contradict the config.
    """

    def __init__(self, layer: StoredLayer, layout: Layout, dtype: torch.dtype) -> None:
        self._layer = layer
        self._layout = layout
        self._dtype = dtype
        self._scheme, self.shape = layout.find_scheme(layer)
        self.part_shapes = {layer.name: self.shape}
        inputs = self.shape[1]
        is_in_order = layout.group_of(layer, self._scheme, inputs) is None
        self.form = block_form(self._scheme, inputs) if is_in_order else ""
        self.is_left_out = False
        self.is_packed = True

    def __getitem__(self, _: object) -> Tensor:
        if self.is_left_out:
            return torch.zeros((), dtype=self._dtype).expand(self.shape)
        return self._weight().dequantized().to(self._dtype)

    def blocks(self) -> Tensor:
        """Its blocks, uint8 `[outputs, bytes]`.

        Raises:
            ModelError: a scale is not finite, or is not representable in float16, which blocks need.
        """
        try:
            return self._weight().blocks(self.form)
        except ValueError as error:
            advice = 'load it with quantize="none"' if "float16" in str(error) else COPY
            raise ModelError(f"the weights of {self._layer.name} cannot be used: {error}; {advice}") from None

    def stacks(self) -> list[Tensor]:
        raise AssertionError("folders have the weights of each expert apart")

    def _weight(self) -> GroupedWeight:
        return self._layout.read(self._layer, self._scheme, self.shape)


def weights_in(folder: Path, layout: Layout, dtype: torch.dtype) -> dict[str, PlainWeight | QuantizedWeight]:
    """The weights of a folder by the names of its model; values are read on access.

    Args:
        folder: a folder of safetensors files.
        layout: layout of the quantised weights.
        dtype: dtype to read weights in.

    Raises:
        ModelError: tensors contradict the config, none is quantised, or a weight is there twice.
    """
    tensors = _tensors_in(folder)
    layers = {name.removesuffix(f".{layout.scales}") for name in tensors if name.endswith(f".{layout.scales}")}
    quantized_layers = {layer for layer in layers if f"{layer}.{layout.numbers}" in tensors}
    if not quantized_layers:
        raise ModelError(f"config.json says {layout.method}, and no tensor in {folder} is packed so; {COPY}")
    weights: dict[str, PlainWeight | QuantizedWeight] = {}
    tensors_by_layer = defaultdict[str, dict[str, _FolderTensor]](dict)
    for name, tensor in tensors.items():
        layer, _, suffix = name.rpartition(".")
        if layer in quantized_layers and suffix in layout.suffixes:
            tensors_by_layer[layer][suffix] = tensor
        else:
            weights[name] = PlainWeight(tensor.read, tensor.shape, dtype)
    for layer, layer_tensors in tensors_by_layer.items():
        name = f"{layer}.weight"
        if name in weights:
            raise ModelError(f"{folder} holds {name} both whole and packed; {COPY}")
        weights[name] = QuantizedWeight(_stored_layer(layer, layer_tensors), layout, dtype)
    return weights


def holds_safetensors(folder: Path) -> bool:
    """Whether all weight files of a folder are safetensors, which can be read tensor by tensor."""
    return all(path.suffix == ".safetensors" for path in weight_files(folder))


def _tensors_in(folder: Path) -> dict[str, _FolderTensor]:
    """The tensors of a folder by name."""
    tensors: dict[str, _FolderTensor] = {}
    for path in weight_files(folder):
        file: Any = safe_open(path, "pt")
        for name in file.keys():  # noqa: SIM118
            header = file.get_slice(name)
            shape = tuple(header.get_shape())
            tensors[name] = _FolderTensor(shape, header.get_dtype(), partial(file.get_tensor, name))
    return tensors


def _stored_layer(name: str, tensors: Mapping[str, _FolderTensor]) -> StoredLayer:
    """The quantised layer of this name, whose tensors are given by suffix."""
    shapes = {suffix: tensor.shape for suffix, tensor in tensors.items()}
    dtypes = {suffix: tensor.dtype for suffix, tensor in tensors.items()}
    return StoredLayer(name, shapes, lambda suffix: tensors[suffix].read(), dtypes)
