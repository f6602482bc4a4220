"""Reads folders whose linear layers are quantised; each tensor is read when it is asked for."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.drafters.formats import weight_files
from drafttree.loading.quantized.grouped_weight import GroupedWeight, block_form
from drafttree.loading.quantized.layouts import Layout, StoredLayer

COPY = "download or copy the folder again"


class PlainWeight:
    """A weight of a folder that is not quantised; implements `drafttree.loading.stored_blocks.StoredWeight`.

    Args:
        read: reads the tensor.
        shape: its shape.
        dtype: dtype to convert it to, if it is of floating-point numbers.

    Attributes:
        is_left_out: always False.
        is_packed: always False.
        form: always empty.
    """

    form = ""

    def __init__(self, read: Callable[[], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._read = read
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
    shapes, dtypes, reads = _tensors_in(folder)
    layers = {name.removesuffix(f".{layout.scales}") for name in shapes if name.endswith(f".{layout.scales}")}
    layers = {layer for layer in layers if f"{layer}.{layout.numbers}" in shapes}
    if not layers:
        raise ModelError(f"config.json says {layout.method}, and no tensor in {folder} is packed so; {COPY}")
    weights: dict[str, PlainWeight | QuantizedWeight] = {}
    shapes_by_layer = defaultdict[str, dict[str, tuple[int, ...]]](dict)
    for name, shape in shapes.items():
        layer, _, suffix = name.rpartition(".")
        if layer in layers and suffix in layout.parts:
            shapes_by_layer[layer][suffix] = shape
        else:
            weights[name] = PlainWeight(reads[name], shape, dtype)
    for layer, layer_shapes in shapes_by_layer.items():
        name = f"{layer}.weight"
        if name in weights:
            raise ModelError(f"{folder} holds {name} both whole and packed; {COPY}")
        layer_dtypes = {suffix: dtypes[f"{layer}.{suffix}"] for suffix in layer_shapes}
        stored_layer = StoredLayer(layer, layer_shapes, partial(_read_part, reads, layer), layer_dtypes)
        weights[name] = QuantizedWeight(stored_layer, layout, dtype)
    return weights


def holds_safetensors(folder: Path) -> bool:
    """Whether all weight files of a folder are safetensors, which can be read tensor by tensor."""
    return all(path.suffix == ".safetensors" for path in weight_files(folder))


def _tensors_in(folder: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str], dict[str, Callable[[], Tensor]]]:
    """By name of a folder's tensors: shapes, safetensors' names of dtypes, and functions that read them."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, str] = {}
    reads: dict[str, Callable[[], Tensor]] = {}
    for path in weight_files(folder):
        file: Any = safe_open(path, "pt")
        for name in file.keys():  # noqa: SIM118
            tensor = file.get_slice(name)
            shapes[name] = tuple(tensor.get_shape())
            dtypes[name] = tensor.get_dtype()
            reads[name] = partial(file.get_tensor, name)
    return shapes, dtypes, reads


def _read_part(reads: dict[str, Callable[[], Tensor]], layer: str, part: str) -> Tensor:
    return reads[f"{layer}.{part}"]()
