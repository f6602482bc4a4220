"""Layouts of quantised linear layers in files: GPTQ, AWQ, compressed-tensors' packed weights, and MLX.

Other quantisations (of activations, float8, rotations) are left to transformers.

Sources: gptqmodel (`qlinear/torch.py`, `utils/model.py`), AutoAWQ (`awq/utils/packing_utils.py`), compressed-tensors
(`compressors/pack_quantized`), MLX (`mx.quantize`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.config import Fields, Size
from drafttree.loading.quantized.grouped_weight import WORD, GroupedWeight, Scheme, unpacked
from drafttree.models.quantization.quantized_linear import quantization_method

ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""By bits of a number, the word in which every packed number is 1."""
WORDS, WHOLE, FLOATS = {"I32", "U32"}, {"I32", "I64"}, {"F16", "BF16", "F32"}
"""Dtypes by safetensors' names: of words with packed numbers, of plain integers, and of scales."""
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""For each of eight outputs, the place of its number in a word of AWQ: even outputs come first."""


class StoredLayer(NamedTuple):
    """The tensors of a linear layer in a folder, by suffix: what a tensor's name adds to the layer's.

    Attributes:
        name: name of the layer.
        shapes: shapes by suffix.
        read: reads the tensor of a suffix from its file.
        dtypes: safetensors' names of the dtypes, by suffix.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    dtypes: Mapping[str, str]


class Layout(ABC):
    """How a quantisation method lays out the weights of linear layers.

    A tensor's suffix is what its name adds to the layer's.

    Attributes:
        method: name of the method.
        numbers: suffix of the tensor with a weight's numbers.
        scales: suffix of the tensor with its scales.
        order: suffix of the tensor with the group of each input; None if groups are always equal runs of inputs.
        other_suffixes: suffixes of further tensors that a weight may have.
        is_of_mlx: whether it is MLX's layout, which transformers cannot read.
        dtypes: safetensors' names of the dtypes that a tensor may be stored in, by suffix.
    """

    dtypes: ClassVar[Mapping[str, set[str]]]
    method: ClassVar[str]
    numbers: ClassVar[str]
    scales: ClassVar[str]
    order: ClassVar[str | None] = None
    other_suffixes: ClassVar[tuple[str, ...]]
    is_of_mlx: ClassVar[bool] = False

    @property
    def suffixes(self) -> set[str]:
        """The suffixes of all tensors of a weight."""
        return {self.numbers, self.scales, *self.other_suffixes, *([self.order] if self.order else [])}

    @abstractmethod
    def schemes(self, name: str) -> list[Scheme]:
        """The schemes that the config allows for the weight of a layer; at least one."""

    @abstractmethod
    def expected(self, layer: StoredLayer, scheme: Scheme) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]]:
        """The shape `[out, in]` of a layer's weight, and those of its tensors by suffix, if it has a given scheme."""

    @abstractmethod
    def read(self, layer: StoredLayer, scheme: Scheme, shape: tuple[int, int]) -> GroupedWeight:
        """The weight of a layer, which has the given scheme and shape `[out, in]`."""

    def order_shape(self, layer: StoredLayer, inputs: int) -> dict[str, tuple[int, ...]]:
        """The shape of the tensor with the group of each input, by its suffix; empty if the layer has none."""
        return {self.order: (inputs,)} if self.order and self.order in layer.shapes else {}

    def group_of(self, layer: StoredLayer, scheme: Scheme, inputs: int) -> Tensor | None:
        """The group of each input, int64 `[in]`; None if groups are equal runs of inputs.

        Raises:
            ModelError: the tensor names a group that does not exist.
        """
        if self.order is None or self.order not in layer.shapes:
            return None
        group_of = layer.read(self.order).long()
        if bool((group_of == -1).all()) or torch.equal(group_of, torch.arange(inputs) // (scheme.group_size or inputs)):
            return None
        groups = scheme.groups(inputs)
        if int(group_of.min()) < 0 or int(group_of.max()) >= groups:
            raise ModelError(f"{layer.name}.{self.order} names groups that there are not; there are {groups}")
        return group_of

    def find_scheme(self, layer: StoredLayer) -> tuple[Scheme, tuple[int, int]]:
        """The scheme of a layer's weight, and the weight's shape `[out, in]`.

        Raises:
            ModelError: the shapes or dtypes of the layer's tensors contradict the config.
        """
        if len(layer.shapes[self.numbers]) != 2:
            raise ModelError(f"{layer.name}.{self.numbers} is {list(layer.shapes[self.numbers])}, and no matrix")
        for suffix, dtype in layer.dtypes.items():
            if dtype not in self.dtypes[suffix]:
                alternatives = " or ".join(sorted(self.dtypes[suffix]))
                raise ModelError(f"{layer.name}.{suffix} is stored in {dtype}, and should be in {alternatives}")
        schemes = self.schemes(layer.name)
        for scheme in schemes:
            shape, expected_shapes = self.expected(layer, scheme)
            if all(layer.shapes.get(suffix) == size for suffix, size in expected_shapes.items()):
                return scheme, shape
        alternatives = " or ".join(map(str, schemes))
        sizes = ", ".join(f"{suffix} {list(size)}" for suffix, size in sorted(layer.shapes.items()))
        raise ModelError(
            f"config.json says {self.method} with {alternatives}, which the tensors of {layer.name} are not: {sizes}"
        )


class GPTQFields(Fields):
    """Fields of GPTQ's quantization_config."""

    bits: Size = 4
    group_size: Any = -1
    sym: Any = False
    checkpoint_format: Any = "gptq"
    pack_dtype: Any = "int32"
    planar: Any = False
    dynamic: Any = None


class GPTQ(Layout):
    """GPTQ: numbers are packed along the inputs; version 1 stores each zero minus 1.

    Args:
        settings: the quantization_config.
    """

    method = "GPTQ"
    numbers = "qweight"
    scales = "scales"
    order = "g_idx"
    other_suffixes = ("qzeros",)
    dtypes: ClassVar[Mapping[str, set[str]]] = {"qweight": WORDS, "qzeros": WORDS, "scales": FLOATS, "g_idx": WHOLE}

    def __init__(self, settings: Mapping[str, Any]) -> None:
        fields = GPTQFields.read(settings)
        self._adds_one = fields.checkpoint_format == "gptq"
        self._scheme = Scheme(fields.bits, _group_size(fields.group_size), "middle" if fields.sym else "zero")

    @staticmethod
    def is_known(settings: Mapping[str, Any]) -> bool:
        """Whether drafttree reads every setting of a quantization_config."""
        fields = GPTQFields.read(settings)
        is_plain = fields.pack_dtype == "int32" and not fields.planar and not fields.dynamic
        return is_plain and fields.checkpoint_format in ("gptq", "gptq_v2") and fields.bits in ONES

    def schemes(self, name: str) -> list[Scheme]:
        return [self._scheme]

    def expected(self, layer: StoredLayer, scheme: Scheme) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]]:
        words, outputs = layer.shapes[self.numbers]
        inputs = words * WORD // scheme.bits
        groups = scheme.groups(inputs)
        zeros = groups, outputs * scheme.bits // WORD
        return (outputs, inputs), {"scales": (groups, outputs), "qzeros": zeros} | self.order_shape(layer, inputs)

    def read(self, layer: StoredLayer, scheme: Scheme, shape: tuple[int, int]) -> GroupedWeight:
        outputs, inputs = shape
        qzeros = layer.read("qzeros")
        # added to whole words, as GPTQ packages do: a carry goes into the next number
        words = qzeros + ONES[scheme.bits] if self._adds_one else qzeros
        zeros = unpacked(words, scheme.bits, outputs).t()
        if scheme.offset == "middle" and bool((zeros != 1 << scheme.bits - 1).any()):
            raise ModelError(f"config.json says that weights are symmetric, and {layer.name}.qzeros says otherwise")
        numbers = unpacked(layer.read(self.numbers).t(), scheme.bits, inputs)
        scales = layer.read(self.scales).t()
        group_of = self.group_of(layer, scheme, inputs)
        return GroupedWeight(scheme, numbers, scales, None if scheme.offset == "middle" else zeros, group_of=group_of)


class AWQFields(Fields):
    """Fields of AWQ's quantization_config."""

    bits: Any = 4
    group_size: Any = 128
    version: Any = "gemm"
    zero_point: Any = True


class AWQ(Layout):
    """AWQ: numbers are packed along the outputs, which are interleaved within a word.

    Args:
        settings: the quantization_config.
    """

    method = "AWQ"
    numbers = "qweight"
    scales = "scales"
    other_suffixes = ("qzeros",)
    dtypes: ClassVar[Mapping[str, set[str]]] = {"qweight": WORDS, "qzeros": WORDS, "scales": FLOATS}

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._scheme = Scheme(4, _group_size(AWQFields.read(settings).group_size), "zero")

    @staticmethod
    def is_known(settings: Mapping[str, Any]) -> bool:
        """Whether drafttree reads every setting of a quantization_config."""
        fields = AWQFields.read(settings)
        return fields.bits == 4 and bool(fields.zero_point) and str(fields.version).lower() == "gemm"

    def schemes(self, name: str) -> list[Scheme]:
        return [self._scheme]

    def expected(self, layer: StoredLayer, scheme: Scheme) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]]:
        inputs, words = layer.shapes[self.numbers]
        outputs = words * WORD // scheme.bits
        groups = scheme.groups(inputs)
        return (outputs, inputs), {"scales": (groups, outputs), "qzeros": (groups, words)}

    def read(self, layer: StoredLayer, scheme: Scheme, shape: tuple[int, int]) -> GroupedWeight:
        numbers = self._in_order(layer.read(self.numbers), shape[0])
        zeros = self._in_order(layer.read("qzeros"), shape[0])
        return GroupedWeight(scheme, numbers, layer.read(self.scales).t(), zeros)

    def _in_order(self, words: Tensor, outputs: int) -> Tensor:
        """Unpack words `[rows, words]` into numbers `[out, rows]`, with the outputs in order."""
        numbers = unpacked(words, self._scheme.bits, outputs).unflatten(1, (-1, len(AWQ_PLACES)))
        return numbers[..., AWQ_PLACES].flatten(1).t()


class PackedWeights(Fields):
    """Fields of compressed-tensors for the weights of a group of layers."""

    num_bits: Any = None
    type: Any = "int"
    symmetric: Any = True
    strategy: Any = None
    group_size: Any = None


class CompressedTensorsFields(Fields):
    """Fields of compressed-tensors' quantization_config."""

    format: Any = None
    config_groups: Any = None
    kv_cache_scheme: Any = None
    sparsity_config: Any = None
    transform_config: Any = None


class CompressedTensors(Layout):
    """compressed-tensors: numbers are packed along the inputs; half of the range is added to numbers and zeros.

    Args:
        settings: the quantization_config.
    """

    method = "compressed-tensors"
    numbers = "weight_packed"
    scales = "weight_scale"
    order = "weight_g_idx"
    other_suffixes = ("weight_shape", "weight_zero_point")
    dtypes: ClassVar[Mapping[str, set[str]]] = {
        **{"weight_packed": WORDS, "weight_scale": FLOATS, "weight_g_idx": WHOLE, "weight_shape": WHOLE},
        # older files store a byte or a float for each zero
        "weight_zero_point": WORDS | FLOATS | {"I8", "U8"},
    }

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._schemes = [_packed_scheme(group) for group in _config_groups(settings)]

    @staticmethod
    def is_known(settings: Mapping[str, Any]) -> bool:
        """Whether drafttree reads every setting of a quantization_config."""
        fields = CompressedTensorsFields.read(settings)
        groups = _config_groups(settings)
        if fields.format != "pack-quantized" or fields.kv_cache_scheme or fields.sparsity_config or not groups:
            return False
        return not fields.transform_config and all(_is_of_weights_alone(group) for group in groups)

    def schemes(self, name: str) -> list[Scheme]:
        return self._schemes

    def expected(self, layer: StoredLayer, scheme: Scheme) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]]:
        if layer.shapes.get("weight_shape") != (2,):
            raise ModelError(f"the weights of {layer.name} have no weight_shape of two numbers beside weight_packed")
        outputs, inputs = (int(size) for size in layer.read("weight_shape"))
        groups = scheme.groups(inputs)
        expected_shapes: dict[str, tuple[int, ...]] = {
            self.numbers: (outputs, -(-inputs * scheme.bits // WORD)),
            self.scales: (outputs, groups),
        }
        packed_shape = -(-outputs * scheme.bits // WORD), groups
        if scheme.offset == "zero":
            expected_shapes["weight_zero_point"] = packed_shape if self._packs_zeros(layer) else (outputs, groups)
        elif "weight_zero_point" in layer.shapes:
            expected_shapes["weight_zero_point"] = ()  # the scheme has no zeros, so no shape is right
        return (outputs, inputs), expected_shapes | self.order_shape(layer, inputs)

    def read(self, layer: StoredLayer, scheme: Scheme, shape: tuple[int, int]) -> GroupedWeight:
        outputs, inputs = shape
        numbers = unpacked(layer.read(self.numbers), scheme.bits, inputs)
        zeros = None
        if scheme.offset == "zero":
            stored_zeros = layer.read("weight_zero_point")
            if self._packs_zeros(layer):
                zeros = unpacked(stored_zeros.t(), scheme.bits, outputs).t()
            else:
                zeros = (stored_zeros.int() + (1 << scheme.bits - 1)).to(torch.uint8)
        group_of = self.group_of(layer, scheme, inputs)
        return GroupedWeight(scheme, numbers, layer.read(self.scales), zeros, group_of=group_of)

    def _packs_zeros(self, layer: StoredLayer) -> bool:
        """Whether zeros are packed into words; older files store each as a number of its own."""
        return layer.dtypes.get("weight_zero_point") in WORDS


class MLXFields(Fields):
    """Fields of MLX's quantization."""

    bits: Any = 4
    group_size: Any = 64
    mode: Any = "affine"


class MLX(Layout):
    """MLX: numbers are packed along the inputs; each group has a scale and a bias.

    Args:
        settings: the quantization, which may contain others for single layers, by their names.
    """

    method = "MLX"
    numbers = "weight"
    scales = "scales"
    other_suffixes = ("biases",)
    dtypes: ClassVar[Mapping[str, set[str]]] = {"weight": WORDS, "scales": FLOATS, "biases": FLOATS}
    is_of_mlx = True

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings

    @staticmethod
    def is_known(settings: Mapping[str, Any]) -> bool:
        """Whether drafttree reads every setting of a quantization."""
        layers = [layer for layer in settings.values() if isinstance(layer, Mapping)]
        all_fields = [MLXFields.read(quantization) for quantization in (settings, *layers)]
        return all(fields.mode == "affine" and fields.bits in range(2, 9) for fields in all_fields)

    def schemes(self, name: str) -> list[Scheme]:
        layer_settings = self._settings.get(name)
        fields = MLXFields.read(layer_settings if isinstance(layer_settings, Mapping) else self._settings)
        return [Scheme(fields.bits, _group_size(fields.group_size), "minimum")]

    def expected(self, layer: StoredLayer, scheme: Scheme) -> tuple[tuple[int, int], dict[str, tuple[int, ...]]]:
        outputs, words = layer.shapes[self.numbers]
        inputs = words * WORD // scheme.bits
        groups = outputs, scheme.groups(inputs)
        return (outputs, inputs), {"scales": groups, "biases": groups}

    def read(self, layer: StoredLayer, scheme: Scheme, shape: tuple[int, int]) -> GroupedWeight:
        words = layer.read(self.numbers).view(torch.int32)
        numbers = unpacked(words, scheme.bits, shape[1])
        return GroupedWeight(scheme, numbers, layer.read(self.scales), minima=layer.read("biases"))


LAYOUTS = {"gptq": GPTQ, "awq": AWQ, "compressed-tensors": CompressedTensors}
"""Layouts by transformers' names of the methods."""


def layout_of(settings: Mapping[str, Any]) -> Layout | None:
    """The layout of the quantised weights in a model's folder; None if there are none, or it is unknown.

    Args:
        settings: the contents of config.json.

    Raises:
        ModelError: a field has an impossible value.
    """
    if isinstance(mlx := settings.get("quantization"), Mapping):
        return MLX(mlx) if MLX.is_known(mlx) else None
    config = settings.get("quantization_config")
    layout_class = LAYOUTS.get(quantization_method(config) or "")
    return (
        layout_class(config) if layout_class and isinstance(config, Mapping) and layout_class.is_known(config) else None
    )


def _group_size(size: Any) -> int | None:
    """The number of inputs that share a scale; None, also for -1, if all inputs of an output do."""
    if size is None or size == -1:
        return None
    if not isinstance(size, int) or size < 1:
        raise ModelError(f"config.json gives group_size as {size!r}; it must be a whole number, or -1")
    return size


def _config_groups(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = CompressedTensorsFields.read(settings).config_groups
    return [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []


def _is_of_weights_alone(group: Mapping[str, Any]) -> bool:
    """Whether a group quantises weights to integers, and no activations."""
    if (
        group.get("input_activations")
        or group.get("output_activations")
        or not isinstance(group.get("weights"), Mapping)
    ):
        return False
    weights = PackedWeights.read(group["weights"])
    strategies = ("group", "channel")
    return weights.type == "int" and weights.num_bits in range(2, 9) and weights.strategy in strategies


def _packed_scheme(group: Mapping[str, Any]) -> Scheme:
    weights = PackedWeights.read(group["weights"])
    size = _group_size(weights.group_size) if weights.strategy == "group" else None
    return Scheme(weights.num_bits, size, "middle" if weights.symmetric else "zero")
