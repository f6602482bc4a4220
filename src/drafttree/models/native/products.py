"""The matrix products that drafttree-native computes for a decoder, and the linear layers that they replace."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drafttree.models.families import Attention, Block, Experts, Mlp, Stacked, StackedExperts
from drafttree.models.quantization.quantized_linear import QuantizedLinear


class ProductWeights(NamedTuple):
    """The weights of a product, in the form that drafttree-native packs.

    Attributes:
        weights: of each layer, `[outputs, inputs]`, or `[outputs, bytes]` in blocks; their outputs are concatenated.
        bias: float32 `[outputs of all]`, None for none.
        scales: float32 `[outputs of all]` for int8 weights, else None.
        blocks: name of the weights' blocks, None if they are not in blocks.
    """

    weights: list[Tensor]
    bias: Tensor | None = None
    scales: Tensor | None = None
    blocks: str | None = None


class Place(NamedTuple):
    """The place of a linear layer's outputs among those of a product.

    Attributes:
        product: name of the product.
        first: index in the product of the first of these outputs.
        outputs: indices of the outputs in the layer, None for all in order.
    """

    product: str
    first: int
    outputs: Tensor | None


class Products:
    """The products of a decoder layer, whose weights are read only by `read`.

    Attributes:
        layers: by name of the product, the linear layers of one input whose outputs are concatenated.
    """

    def __init__(self) -> None:
        self.layers: dict[str, Sequence[Any]] = {}
        self._output_selectors: dict[str, Callable[[Tensor], Tensor] | None] = {}

    @classmethod
    def of(cls, block: Block) -> "Products":
        """The products of a decoder layer."""
        products = cls()
        products._add_attention(block.attention)
        if block.experts:
            products._add_experts(block.experts)
        if block.mlp:
            products._add_mlp(block.mlp)
        if block.inputs:
            products.add("input_gate", [block.inputs.gate])
            products.add("input_projection", [block.inputs.projection])
        return products

    @classmethod
    def alone(cls, name: str, layer: Any) -> "Products":
        """The product of one linear layer outside the decoder layers."""
        products = cls()
        products.add(name, [layer])
        return products

    def add(self, name: str, layers: Sequence[Any], output_selector: Callable[[Tensor], Tensor] | None = None) -> None:
        """Add the product of linear layers of one input.

        Args:
            name: name of the product.
            layers: the linear layers.
            output_selector: selects the outputs of each layer that belong to the product, from its weight `[out, in]`
                or a vector `[out]`; None for all outputs.
        """
        self.layers[name] = layers
        self._output_selectors[name] = output_selector

    def read(self) -> dict[str, ProductWeights]:
        """By name of the product, its weights. Layers that have released their weights get them back."""
        return {name: _read(layers, self._output_selectors[name]) for name, layers in self.layers.items()}

    @property
    def places(self) -> dict[Any, list[Place]]:
        """By linear layer, the places of its outputs in products."""
        output_places = defaultdict[Any, list[Place]](list)
        for name, layers in self.layers.items():
            first_output = 0
            output_selector = self._output_selectors[name]
            for layer in layers:
                outputs = output_selector(torch.arange(layer.out_features, device="cpu")) if output_selector else None
                output_places[layer].append(Place(name, first_output, outputs))
                first_output += layer.out_features if outputs is None else len(outputs)
        return output_places

    @property
    def linear_layers(self) -> list[Any]:
        """The linear layers, each once."""
        return [*dict.fromkeys(chain.from_iterable(self.layers.values()))]

    @property
    def tensors(self) -> list[Any]:
        """The tensors of linear layers that are packed, None for each that a layer lacks."""
        return [*chain.from_iterable(map(tensors_of, self.linear_layers))]

    def _add_attention(self, attention: Attention) -> None:
        heads, width = attention.query_heads, attention.width
        output_selector = partial(_by_kind, heads=heads, width=width) if attention.interleaved else None
        for index, (_, layers) in enumerate(groupby(attention.qkv, _format)):
            self.add(f"qkv/{index}", [*layers], output_selector)
        self.add("out", [attention.out])

    def _add_mlp(self, mlp: Mlp) -> None:
        """Add the products of an MLP. In some families (Phi-3), gate and up projection are one layer."""
        if not mlp.gated:
            self.add("up", mlp.gate_up)
        else:
            for index, name in enumerate(("gate", "up")):
                if len(mlp.gate_up) == 1:
                    self.add(name, mlp.gate_up, lambda rows, chunk_index=index: rows.chunk(2)[chunk_index])
                else:
                    self.add(name, [mlp.gate_up[index]])
        self.add("down", [mlp.down])

    def _add_experts(self, experts: Experts) -> None:
        """Add the products of a mixture of experts."""
        self.add("router", [experts.router])
        if isinstance(experts.weights, StackedExperts):
            self._add_stacked(experts.weights, experts.count)
            return
        for index, expert in enumerate(experts.weights):
            gate, up = expert.gate_up
            self.add(f"gate/{index}", [gate])
            self.add(f"up/{index}", [up])
            self.add(f"down/{index}", [expert.down])

    def _add_stacked(self, weights: StackedExperts, count: int) -> None:
        intermediate_size = weights.gate_up.out_features // count // 2
        hidden_size = weights.down.out_features // count
        for expert in range(count):
            for index, name in enumerate(("gate", "up")):
                self.add(
                    f"{name}/{expert}",
                    [weights.gate_up],
                    _rows((2 * expert + index) * intermediate_size, intermediate_size),
                )
            self.add(f"down/{expert}", [weights.down], _rows(expert * hidden_size, hidden_size))


def _format(layer: Any) -> tuple[type, str | None]:
    """A key that is equal for linear layers whose weights can be in one product."""
    return type(layer), getattr(layer, "blocks", None)


def _by_kind(rows: Tensor, heads: int, width: int) -> Tensor:
    """Reorder outputs that are interleaved by heads: all query heads, then key heads, then value heads."""
    return rows.unflatten(0, (heads, 3, width)).transpose(0, 1).flatten(0, 2)


def _rows(first_row: int, count: int) -> Callable[[Tensor], Tensor]:
    return lambda rows: rows[first_row : first_row + count]


def _read(layers: Sequence[Any], output_selector: Callable[[Tensor], Tensor] | None) -> ProductWeights:
    select = output_selector or (lambda rows: rows)
    layer_weights = (getattr(*weight_place(layer)).detach().flatten(0, -2) for layer in layers)
    weights = [select(weight).contiguous() for weight in layer_weights]
    quantized = layers[0] if isinstance(layers[0], QuantizedLinear) else None
    scales = None
    if quantized and quantized.scale is not None:
        scales = torch.cat([select(layer.scale.detach()) for layer in layers])
    assert len({*map(_format, layers)}) == 1
    biases = [  # some layers may have one and others none
        torch.zeros(layer.out_features, dtype=torch.float32) if layer.bias is None else layer.bias.detach().float()
        for layer in layers
    ]
    has_bias = any(layer.bias is not None for layer in layers)
    bias = torch.cat([select(bias) for bias in biases]) if has_bias else None
    return ProductWeights(weights, bias, scales, quantized.blocks if quantized else None)


def weight_of(layer: Any) -> ProductWeights:
    """The weights of a linear layer that is a product alone."""
    return _read([layer], None)


def tensors_of(layer: Any) -> list[Any]:
    """The packed tensors of a linear layer: weight, bias and scale; None for each that it lacks."""
    scale = layer.scale if isinstance(layer, QuantizedLinear) else None
    return [getattr(*weight_place(layer)), layer.bias, scale]


def weight_place(layer: Any) -> tuple[Any, str]:
    """The module that has a linear layer's weight, and the weight's name in it."""
    if isinstance(layer, Stacked):
        return layer.owner, layer.name
    return layer, "quantized" if isinstance(layer, QuantizedLinear) else "weight"
