"""What drafttree-native has to know of decoder layers."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from drafttree.models.fused.fused_layers import (
    LayerKind,
    has_rotary,
    head_projections,
    norm_offset,
    projected_of,
)
from drafttree.models.fused.int8_linear import Int8Linear

ACTIVATIONS = {
    **{"SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "GELU": "gelu", "ReLU": "relu"},
    **{"NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "GELUTanh": "gelu_tanh"},
}
"""Names of activations in drafttree-native by those of transformers' and torch's classes."""


Arrays = tuple[list[Tensor], Tensor | None, Tensor | None]
"""The weights that a product is made of, their bias, and the scales of weights of eight bits."""


class Stacked(NamedTuple):
    """A weight that is no linear layer's: a router's, or those of all experts of a layer, `[experts, out, in]`.

    Attributes:
        owner: the module that has it.
        name: its name there.
        out_features: rows of all its matrices.
    """

    owner: Any
    name: str
    out_features: int
    bias = None

    @classmethod
    def of(cls, owner: Any, name: str) -> "Stacked":
        return cls(owner, name, getattr(owner, name).shape[:-1].numel())


class Place(NamedTuple):
    """Where outputs of a linear layer are.

    Attributes:
        product: the product that they are in.
        first: the first of them there.
        outputs: which they are, None for all in order.
    """

    product: str
    first: int
    outputs: Tensor | None


class Products:
    """The products of a decoder layer, whose weights are read only when they are packed.

    Attributes:
        layers: by name, the linear layers of one input whose outputs lie behind each other.
    """

    def __init__(self) -> None:
        self.layers: dict[str, Sequence[Any]] = {}
        self._takes: dict[str, Callable[[Tensor], Tensor] | None] = {}

    def add(self, name: str, layers: Sequence[Any], taken: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add the product of linear layers of one input.

        Args:
            name: its name.
            layers: the layers.
            taken: takes those of their outputs that are wanted, of weights `[out, in]` and of vectors `[out]`; all
                without.
        """
        self.layers[name], self._takes[name] = layers, taken

    def read(self) -> dict[str, Arrays]:
        """By name, what is packed; layers that have released their weights get them back."""
        return {name: _read(layers, self._takes[name]) for name, layers in self.layers.items()}

    @property
    def places(self) -> dict[Any, list[Place]]:
        """Where the outputs of each linear layer are."""
        places = defaultdict[Any, list[Place]](list)
        for name, layers in self.layers.items():
            first, taken = 0, self._takes[name]
            for layer in layers:
                outputs = taken(torch.arange(layer.out_features, device="cpu")) if taken else None
                places[layer].append(Place(name, first, outputs))
                first += layer.out_features if outputs is None else len(outputs)
        return places

    @property
    def tensors(self) -> list[Any]:
        """What is packed of linear layers, None for no bias."""
        once = dict.fromkeys(layer for layers in self.layers.values() for layer in layers)
        return [tensor for layer in once for tensor in tensors_of(layer)]


def _read(layers: Sequence[Any], taken: Callable[[Tensor], Tensor] | None) -> Arrays:
    take = taken or (lambda rows: rows)
    held = (getattr(*weight_place(layer)).detach().flatten(0, -2) for layer in layers)
    weights = [take(weight).contiguous() for weight in held]
    is_int8 = isinstance(layers[0], Int8Linear)
    scales = torch.cat([take(layer.scale.detach()) for layer in layers]) if is_int8 else None
    biases = [  # some may have one and others none
        torch.zeros(layer.out_features, dtype=torch.float32) if layer.bias is None else layer.bias.detach().float()
        for layer in layers
    ]
    has_bias = any(layer.bias is not None for layer in layers)
    return weights, torch.cat([take(bias) for bias in biases]) if has_bias else None, scales


class NativeLayer:
    """What drafttree-native has to know of a decoder layer.

    Attributes:
        norms: by place; None or nothing for none.
        products: its products.
        shape: sizes and numbers of the layer.
        rotary: type of the rotary embedding, None where all layers have the same.
        turns: whether queries and keys are turned by it.
    """

    norms: dict[str, tuple | None]
    products: Products
    shape: dict[str, Any]
    rotary: str | None
    turns: bool


class NativeLlamaLayer(NativeLayer):
    """A layer of the Llama kind; see `drafttree.models.fused.fused_layers.LlamaLayer`."""

    def __init__(self, block: Any, config: Any) -> None:
        attention, mlp = block.self_attn, block.mlp
        kind = LayerKind.of(attention)
        if kind.span.chunk is not None:
            raise AttributeError("layers that attend in chunks are not known")
        self.rotary, self.turns = kind.layer_type, has_rotary(attention)
        width, groups = attention.head_dim, attention.num_key_value_groups
        qkv = head_projections(attention)
        self.products = Products()
        for name, layers in (("qkv", qkv), ("out", [attention.o_proj])):
            self.products.add(name, layers)
        is_mixture = hasattr(mlp, "experts")
        self.norms = _block_norms(block)
        if is_mixture:
            _add_experts(self.products, mlp.experts, Stacked.of(mlp.gate, "weight"))
            norm = self.norms.pop("before_mlp")
            self.norms |= {"before_router": norm, "before_experts": norm}
        else:
            _add_mlp(self.products, mlp)
        for name, attribute in (("query", "q_norm"), ("key", "k_norm"), ("value", "v_norm")):
            if hasattr(attention, attribute):
                self.norms[name] = norm_of(getattr(attention, attribute), width)
        activated = mlp.experts if is_mixture else mlp
        activation = activated.act_fn if hasattr(activated, "act_fn") else activated.activation_fn
        projected = projected_of(attention)
        outputs = sum(layer.out_features for layer in qkv)
        self.shape = {
            "key_heads": outputs // width // (projected + groups),
            "groups": groups,
            "projected": projected,
            "width": width,
            "window": kind.span.window,
            "scale": float(attention.scaling),
            "multiplier": float(getattr(block, "residual_multiplier", 1.0)),
            "parallel": False,
            "activation": _activation(activation),
            **(_routing(mlp) if is_mixture else {}),
        }


class NativeGemma4Layer(NativeLlamaLayer):
    """A layer of Gemma 4; see `drafttree.models.fused.gemma4_layer.Gemma4Layer`."""

    def __init__(self, block: Any, config: Any) -> None:
        super().__init__(block, config)
        self.shape["scalar"] = float(block.layer_scalar)
        if block.enable_moe_block:
            router = block.router
            _add_experts(self.products, block.experts, router.proj)
            scale = router.scale.detach().float() * router.scalar_root_size
            self.norms |= {
                "before_router": (scale, None, float(router.eps), False),
                "before_experts": norm_of(block.pre_feedforward_layernorm_2),
                "after_inner": norm_of(block.post_feedforward_layernorm_1),
                "after_experts": norm_of(block.post_feedforward_layernorm_2),
            }
            scales = router.per_expert_scale.detach().float()
            counts = {"experts": len(scales), "chosen": router.config.top_k_experts, "rescaled": True}
            self.shape |= {**counts, "expert_scales": scales}
        if block.hidden_size_per_layer_input:
            self.products.add("input_gate", [block.per_layer_input_gate])
            self.products.add("input_projection", [block.per_layer_projection])
            self.norms["after_inputs"] = norm_of(block.post_per_layer_input_norm)


class LayerInputs:
    """What drafttree-native has to know of what each layer of Gemma 4 reads beside the residual stream.

    Args:
        decoder: the decoder whose layers read it.

    Attributes:
        embedding: of the tokens, for all layers.
        projection: of what the residual stream begins with.
        norm: of a layer's part of the projection.
        scales: of the projection, and of the sum of both.
    """

    def __init__(self, decoder: Any) -> None:
        self.embedding: nn.Embedding = decoder.embed_tokens_per_layer
        self.projection: Any = decoder.per_layer_model_projection
        self.norm = norm_of(decoder.per_layer_projection_norm)
        self.scales = float(decoder.per_layer_model_projection_scale), float(decoder.per_layer_input_scale)

    @classmethod
    def of(cls, decoder: Any) -> "LayerInputs | None":
        """Those of a decoder, None where layers read nothing else."""
        return cls(decoder) if getattr(decoder, "hidden_size_per_layer_input", None) else None


class NativeNeoXLayer(NativeLayer):
    """A layer of GPT-NeoX, whose queries, keys and values are interleaved by heads in the module."""

    rotary, turns = None, True

    def __init__(self, block: Any, config: Any) -> None:
        attention, mlp = block.attention, block.mlp
        heads, width = config.num_attention_heads, attention.head_size
        self.products = Products()
        self.products.add(
            "qkv",
            [attention.query_key_value],
            lambda rows: rows.unflatten(0, (heads, 3, width)).transpose(0, 1).flatten(0, 2),
        )
        parts = {"out": attention.dense, "up": mlp.dense_h_to_4h, "down": mlp.dense_4h_to_h}
        for name, part in parts.items():
            self.products.add(name, [part])
        self.norms = {
            "before_attention": norm_of(block.input_layernorm),
            "before_mlp": norm_of(block.post_attention_layernorm),
        }
        self.shape = {
            "key_heads": heads,
            "groups": 1,
            "width": width,
            "window": None,
            "scale": float(attention.scaling),
            "multiplier": 1.0,
            "parallel": block.use_parallel_residual,
            "activation": _activation(mlp.act),
        }


def _add_mlp(products: Products, mlp: Any) -> None:
    """Add the products of a gated MLP, whose gate and up projection some families (Phi-3) have as one."""
    for half, name in enumerate(("gate", "up")):
        if hasattr(mlp, "gate_up_proj"):
            products.add(name, [mlp.gate_up_proj], lambda rows, half=half: rows.chunk(2)[half])
        else:
            products.add(name, [getattr(mlp, f"{name}_proj")])
    products.add("down", [mlp.down_proj])


def _add_experts(products: Products, experts: Any, router: Any) -> None:
    """Add the products of a mixture of experts, whose weights are stacked: gates and up projections in one."""
    count, _, inner = experts.down_proj.shape
    gate_up, down = Stacked.of(experts, "gate_up_proj"), Stacked.of(experts, "down_proj")
    hidden = down.out_features // count
    products.add("router", [router])
    for expert in range(count):
        for half, name in enumerate(("gate", "up")):
            products.add(f"{name}/{expert}", [gate_up], _rows((2 * expert + half) * inner, inner))
        products.add(f"down/{expert}", [down], _rows(expert * hidden, hidden))


def _rows(first: int, count: int) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows[first : first + count]


def _routing(mlp: Any) -> dict[str, Any]:
    """How tokens are routed to experts: as in Qwen3, by a softmax over the scores of all."""
    router = mlp.gate
    return {"experts": router.num_experts, "chosen": router.top_k, "rescaled": bool(router.norm_topk_prob)}


def weight_of(layer: Any) -> Arrays:
    """The product of a linear layer alone."""
    return _read([layer], None)


def tensors_of(layer: Any) -> list[Any]:
    """What is packed of a linear layer, as of `Products.tensors`."""
    scale = layer.scale if isinstance(layer, Int8Linear) else None
    return [getattr(*weight_place(layer)), layer.bias, scale]


def weight_place(layer: Any) -> tuple[Any, str]:
    """The module that has a linear layer's weight, and the weight's name there."""
    if isinstance(layer, Stacked):
        return layer.owner, layer.name
    return layer, "quantized" if isinstance(layer, Int8Linear) else "weight"


def _block_norms(block: Any) -> dict[str, tuple | None]:
    """The norms of a layer by place; transformers' name of a norm does not always say where it is."""
    names = ["before_attention", "before_mlp"]
    if hasattr(block, "post_feedforward_layernorm"):
        names = ["before_attention", "after_attention", "before_mlp", "after_mlp"]
        if not hasattr(block, "pre_feedforward_layernorm"):
            names = ["after_attention", "after_mlp"]
    attributes = ["input_layernorm", "post_attention_layernorm"]
    attributes += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    found = [getattr(block, attribute) for attribute in attributes if hasattr(block, attribute)]
    return {name: norm_of(norm) for name, norm in zip(names, found, strict=True)}


def norm_of(norm: Any, width: int = 0) -> tuple | None:
    """Scale, shift, epsilon, and whether the mean is taken off; None for no norm.

    Args:
        norm: the norm.
        width: numbers that are normed, which one without a scale (Gemma 4) does not say.
    """
    if isinstance(norm, nn.Identity):
        return None
    scale = getattr(norm, "weight", None)
    scale = torch.ones(width, dtype=torch.float32, device="cpu") if scale is None else scale.detach()
    weight = scale.float()
    if isinstance(norm, nn.LayerNorm):
        return weight, None if norm.bias is None else norm.bias.detach().float(), float(norm.eps), True
    offset = norm_offset(norm, scale)
    epsilon = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if offset is None or epsilon is None:
        raise AttributeError(f"{type(norm).__name__} is no norm that is known")
    return weight + offset, None, float(epsilon), False


def _activation(function: Any) -> str:
    name = type(function).__name__
    if name not in ACTIVATIONS or getattr(function, "approximate", "none") not in ("none", "tanh"):
        raise AttributeError(f"{name} is no activation that is known")
    return "gelu_tanh" if getattr(function, "approximate", "none") == "tanh" else ACTIVATIONS[name]
