"""Translates the description of a module (`drafttree.models.families`) to the terms of drafttree-native."""

from itertools import chain
from typing import Any

from torch import Tensor, nn

from drafttree.models.cache.kv_cache import Slot
from drafttree.models.families import Attention, Block, Experts, Rotary, describe
from drafttree.models.native.products import Products, tensors_of, weight_of, weight_place
from drafttree.models.norms import Norm, norm_of
from drafttree.models.quantization.quantized_embedding import scale_of, table_of

ACTIVATIONS = {
    **{"SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "GELU": "gelu", "ReLU": "relu"},
    **{"NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "GELUTanh": "gelu_tanh"},
}
"""Names of activation functions in drafttree-native, by class name in transformers and torch."""
LONG = "long"
"""Name of LongRoPE's long frequencies among the types of rotary embeddings."""


class PackedLayer:
    """A decoder layer in the terms of drafttree-native.

    Args:
        block: what the layer computes.

    Attributes:
        norms: norms by their place in the layer, None for none.
        products: products of the layer.
        shape: sizes and other numbers of the layer.
        rotary: type of the rotary embedding, None if all layers have the same.
        is_rotated: whether queries and keys are rotated by it.

    Raises:
        AttributeError: the layer has a part that drafttree-native does not know.
    """

    def __init__(self, block: Block) -> None:
        self.products = Products.of(block)
        self.norms = _norms(block)
        self.shape = _shape(block)
        self.rotary = block.attention.kind.layer_type
        self.is_rotated = block.attention.is_rotated


def _norms(block: Block) -> dict[str, Norm | None]:
    attention = block.attention
    experts = block.experts
    norms: dict[str, Any] = {
        "before_attention": block.before_attention,
        "after_attention": block.after_attention,
        "before_mlp": block.before_mlp,
        "after_mlp": block.after_mlp,
        "query": attention.query_norm,
        "key": attention.key_norm,
    }
    if experts:
        norms |= {"before_router": experts.before_router, "before_experts": experts.before}
        norms |= {"after_inner": experts.after_mlp, "after_experts": experts.after}
    if block.inputs:
        norms["after_inputs"] = block.inputs.after
    return {name: norm_of(norm) for name, norm in norms.items()} | {
        "value": norm_of(attention.value_norm, attention.width)
    }


def _shape(block: Block) -> dict[str, Any]:
    attention = block.attention
    experts = block.experts
    mlp_or_experts = block.mlp or experts
    assert mlp_or_experts
    return {
        **_attention_shape(attention),
        "multiplier": block.multiplier,
        "scalar": block.scalar,
        "parallel": block.parallel,
        "activation": _activation(mlp_or_experts.activation),
        **(_experts_shape(experts) if experts else {}),
    }


def _attention_shape(attention: Attention) -> dict[str, Any]:
    if attention.kind.span.chunk is not None:
        raise AttributeError("layers that attend in chunks are not known")
    return {
        "key_heads": attention.key_heads,
        "groups": attention.kind.groups,
        "projected": attention.projected,
        "width": attention.width,
        "window": attention.kind.span.window,
        "scale": attention.scale,
    }


def _experts_shape(experts: Experts) -> dict[str, Any]:
    """How tokens are routed to experts, by a softmax over all scores."""
    scales = {} if experts.scales is None else {"expert_scales": experts.scales}
    return {"experts": experts.count, "chosen": experts.chosen, "rescaled": experts.rescaled, **scales}


def _activation(function: Any) -> str:
    name = type(function).__name__
    if name not in ACTIVATIONS or getattr(function, "approximate", "none") not in ("none", "tanh"):
        raise AttributeError(f"{name} is not a known activation")
    return "gelu_tanh" if getattr(function, "approximate", "none") == "tanh" else ACTIVATIONS[name]


class PackingPlan:
    """All of a module that is packed. Making a plan does not give released weights back.

    Args:
        module: a module that `drafttree.models.families.describe` accepts.

    Attributes:
        architecture: description of the module.
        layers: the decoder layers.
        rotaries: by type of layer, the frequencies and scaling of the rotary embedding. With LongRoPE, `LONG` has the
            long frequencies.
        norm: the last norm, None for none.

    Raises:
        AttributeError: a layer is not like those of its family, or has a part that drafttree-native does not know.
    """

    def __init__(self, module: nn.Module) -> None:
        self.architecture = describe(module)
        self.layers = [PackedLayer(block) for block in self.architecture.blocks]
        self.rotaries = _rotaries(self.layers, self.architecture.rotaries)
        self.norm = norm_of(self.architecture.norm)

    @property
    def is_tied(self) -> bool:
        """Whether the head has the embedding's weight."""
        return table_of(self.architecture.embedding) is getattr(*weight_place(self.architecture.head))

    @property
    def entry(self) -> dict[str, Any] | None:
        """By name, drafttree-native's arguments for the beginning of a draft head; None for a model."""
        entry = self.architecture.entry
        if entry is None:
            return None
        return {
            "token_norm": norm_of(entry.token_norm),
            "state_norm": norm_of(entry.state_norm),
            "projection": None if entry.projection is None else weight_of(entry.projection),
            "states_first": entry.states_first,
            "residual_normed": entry.normed_residual,
        }

    @property
    def products(self) -> list[tuple[int, Products]]:
        """Pairs of a decoder layer's index, -1 for none, and the products that replace its linear layers."""
        layer_inputs = self.architecture.layer_inputs
        inputs = [(-1, Products.alone("layer_inputs", layer_inputs.projection))] if layer_inputs else []
        layers = [(index, layer.products) for index, layer in enumerate(self.layers)]
        return [*inputs, *layers, (-1, Products.alone("head", self.architecture.head))]

    @property
    def linear_layers(self) -> list[Any]:
        """The linear layers that products replace."""
        layers: list[Any] = []
        for _, products in self.products:
            layers += products.linear_layers
        return layers

    @property
    def tensors(self) -> list[Any]:
        """The packed tensors of embeddings and linear layers; None for each that a layer lacks."""
        architecture = self.architecture
        entry = (
            []
            if architecture.entry is None or architecture.entry.projection is None
            else tensors_of(architecture.entry.projection)
        )
        inputs = [architecture.layer_inputs.embedding.weight] if architecture.layer_inputs else []
        return [
            table_of(architecture.embedding),
            *entry,
            *inputs,
            *chain.from_iterable(map(tensors_of, self.linear_layers)),
        ]

    @property
    def settings(self) -> list[Any]:
        """All packed values beside `tensors`."""
        architecture = self.architecture
        entry = architecture.entry
        entry_settings = None
        if entry:
            entry_norms = norm_of(entry.token_norm), norm_of(entry.state_norm)
            entry_settings = [*entry_norms, entry.states_first, entry.normed_residual]
        scale = embedding_scale(architecture.embedding, architecture.embedding_multiplier)
        inputs = architecture.layer_inputs
        input_settings = None
        if inputs:
            scales = embedding_scale(inputs.embedding), inputs.projection_scale, inputs.sum_scale
            input_settings = [*scales, norm_of(inputs.norm)]
        layers = [(layer.norms, layer.shape, layer.rotary, layer.is_rotated) for layer in self.layers]
        head_settings = self.norm, architecture.logits_divisor, architecture.logits_cap
        return [scale, entry_settings, input_settings, layers, architecture.owners, self.rotaries, *head_settings]

    def shape_of(self, index: int) -> dict[str, Any]:
        """Sizes and numbers of a layer, including the slots of its keys and values and its rotary embeddings."""
        layer = self.layers[index]
        keys, values = self._slots(index)
        shape = {**layer.shape, "buffer": keys.buffer, "key_slot": keys.place, "value_slot": values.place}
        types = [*self.rotaries]
        shape["rotary"] = types.index(layer.rotary) if layer.is_rotated else None
        if layer.is_rotated and LONG in self.rotaries:
            shape["long_rotary"] = types.index(LONG)
        return shape

    def _slots(self, index: int) -> tuple[Slot, Slot]:
        return self.architecture.layout.slots[self.architecture.owners[index]]


def embedding_scale(embedding: Any, multiplier: float | None = None) -> float:
    """The factor of embeddings: the architecture's multiplier if it has one, else the embedding's own factor."""
    return scale_of(embedding) if multiplier is None else multiplier


def _rotaries(layers: list[PackedLayer], rotaries: Any) -> dict[str | None, tuple[Tensor, float]]:
    scaled_frequencies: dict[str | None, tuple[Tensor, float]] = {}
    for layer_type in dict.fromkeys(layer.rotary for layer in layers if layer.is_rotated):
        rotary: Rotary = rotaries[layer_type]
        scaled_frequencies[layer_type] = rotary.frequencies.detach().float().contiguous(), rotary.scaling
        if rotary.long_frequencies is not None:
            scaled_frequencies[LONG] = rotary.long_frequencies.float().contiguous(), rotary.scaling
    return scaled_frequencies
