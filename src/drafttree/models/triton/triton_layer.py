"""A decoder layer of any known family without experts, in at most eleven launches where the family allows.

A norm is part of the addition before it. So a layer is: the product of queries, keys and values (one launch, or two if
its inputs are split); norms of heads, where the family has them; rotation and storing; attention (two); the output
product with its addition and the next norm (two); gates and activations (one or two); the last product, as the output
product (two).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from drafttree.models.families import Attention, Block, BlockInputs, LayerInputs
from drafttree.models.fused.fused_layer import LayerOutput, PassContext
from drafttree.models.fused.fused_linear import JoinedWeights
from drafttree.models.triton.norms import RowNorm, join_head_norms, norm_rows
from drafttree.models.triton.products import (
    Addition,
    LinearWeight,
    activate_linear,
    activation_of,
    add_linear,
    linear,
)
from drafttree.models.triton.rotary import rotate
from drafttree.models.triton.tree_inputs import QueryShape


def joined_weight(*layers: Any) -> LinearWeight:
    """The weight of linear layers of one input; their own weights become views of it.

    A weight that lies column by column, as `lay_out_for_cpu` leaves it, is copied.
    """
    weight, bias, scale = JoinedWeights.of(*layers)
    return LinearWeight(weight.detach().contiguous(), None if bias is None else bias.detach(), scale)


class TritonProduct:
    """A linear layer in Triton. See `drafttree.models.fused.decoder_backend.Product`."""

    def __init__(self, layer: Any) -> None:
        self._weight = joined_weight(layer)
        self.width = self._weight.outputs

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self._weight)


def row_norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """A norm of rows in one launch; None for one that does nothing."""
    numbers = RowNorm.of(norm)
    return (lambda x: x) if numbers is None else lambda x: norm_rows(x, numbers)


class TritonLayer:
    """One decoder layer. See `drafttree.models.fused.decoder_backend.DecoderLayer`.

    Args:
        block: description of the layer.
        index: index of the layer.
        next_norm: norm with which the reader of the residual stream after the layer begins, None for none.

    Attributes:
        kind: kind of the layer.
        query_shape: shape of its queries.
    """

    def __init__(self, block: Block, index: int, next_norm: Any) -> None:
        mlp = block.mlp
        assert mlp
        attention = block.attention
        self.kind = attention.kind
        self.query_shape = QueryShape(attention.query_heads, attention.width)
        self._attention = _TritonAttention(attention)
        self._before_attention = row_norm(block.before_attention)
        self._out = joined_weight(attention.out)
        self._gate_up = joined_weight(*mlp.gate_up)
        self._down = joined_weight(mlp.down)
        self._activation = activation_of(mlp.activation)
        self._gated = mlp.gated
        self._parallel_norm = row_norm(block.before_mlp) if block.parallel else None
        after_out = None if block.parallel else RowNorm.of(block.before_mlp)
        last_norm = RowNorm.of(next_norm)
        self._out_addition = Addition(block.multiplier, RowNorm.of(block.after_attention), norm=after_out)
        self._down_addition = Addition(block.multiplier, RowNorm.of(block.after_mlp))
        if block.inputs:
            addition = Addition(inner=RowNorm.of(block.inputs.after), scalar=block.scalar, norm=last_norm)
            self._inputs = _TritonInputs(block.inputs, index, self._activation, addition)
        else:
            self._inputs = None
            self._down_addition = self._down_addition._replace(scalar=block.scalar, norm=last_norm)

    def forward(self, x: Tensor, attention_input: Tensor | None, context: PassContext, rows: Any) -> LayerOutput:
        """See `DecoderLayer`."""
        if attention_input is None:
            attention_input = self._before_attention(x)
        attention_out = self._attention(attention_input, context, rows)
        residual, normed = add_linear(attention_out, self._out, x, self._out_addition)
        mlp_input = residual if normed is None else normed
        if self._parallel_norm:
            mlp_input = self._parallel_norm(x)
        activated = activate_linear(mlp_input, self._gate_up, self._activation, gated=self._gated)
        residual, normed = add_linear(activated, self._down, residual, self._down_addition)
        if self._inputs and context.layer_inputs is not None:
            residual, normed = self._inputs(residual, context.layer_inputs)
        return LayerOutput(residual, normed)


class _TritonAttention:
    """Attention without its last projection."""

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self._qkv = joined_weight(*attention.qkv)
        self._head_norms = _head_norms(attention)
        self._value_norm = None
        if attention.value_norm and attention.projected == 1:
            self._value_norm = RowNorm.of(attention.value_norm, attention.width)

    def __call__(self, attention_input: Tensor, context: PassContext, rows: Any) -> Tensor:
        """The result of attention, `[nodes, query heads * width]`."""
        attention = self._attention
        angles = (context.cosine, context.sine) if attention.is_rotated else ()
        qkv = linear(attention_input, self._qkv)
        attend: Any = context.attention
        if attention.interleaved:
            query, key, value = qkv.unflatten(1, (-1, 3, attention.width)).unbind(2)
            attend.store(query, key, value, rows, *angles)
            return attend.read(query, rows, attention.scale)
        heads = qkv.unflatten(1, (-1, attention.width))
        value = heads[:, -attention.key_heads :]
        if self._value_norm:  # first, since a key that is the value too is normed in place
            value = norm_rows(value, self._value_norm)
        for head_norm in self._head_norms:
            head_norm.apply(heads)
        query = heads[:, : attention.query_heads]
        if not attention.projected:
            if attention.is_rotated:
                rotate(query, *angles)
            return attend.read(query, rows, attention.scale)
        key = heads[:, attention.query_heads : attention.query_heads + attention.key_heads]
        attend.store(query, key, value, rows, *angles)
        return attend.read(query, rows, attention.scale)


class _HeadNorm(NamedTuple):
    """A norm of some heads.

    Attributes:
        norm: the norm.
        heads: which heads.
        together: whether all of them are normed as one row (OLMo).
    """

    norm: RowNorm
    heads: slice
    together: bool

    def apply(self, heads: Tensor) -> None:
        """Norm these heads of `[nodes, heads, width]` in place, in one launch."""
        head_slice = heads[:, self.heads]
        if self.together:
            head_slice = head_slice.view(len(head_slice), -1)
        norm_rows(head_slice, self.norm, head_slice)


def _head_norms(attention: Attention) -> list[_HeadNorm]:
    """The norms of all query heads, key heads and value heads; a value that is the key is normed elsewhere."""
    query_norm = RowNorm.of(attention.query_norm, attention.width)
    if query_norm is None:
        return []
    heads = attention.query_heads
    key_heads = attention.key_heads
    norms = [(query_norm, heads)]
    if key_norm := RowNorm.of(attention.key_norm, attention.width):
        norms.append((key_norm, key_heads))
    if len(attention.query_norm.weight) != attention.width:
        slices = slice(heads), slice(heads, heads + key_heads)
        return [_HeadNorm(norm, head_slice, True) for (norm, _), head_slice in zip(norms, slices, strict=False)]
    value_norm = RowNorm.of(attention.value_norm, attention.width)
    if value_norm and attention.projected == 2:
        norms.append((value_norm, key_heads))
    end = 0
    head_norms = list[_HeadNorm]()
    for norm, count in norms:
        head_norms.append(_HeadNorm(norm, slice(end, end := end + count), False))
    try:
        return [_HeadNorm(join_head_norms(norms, attention.width), slice(end), False)]
    except ValueError:  # they differ in more than their weights
        return head_norms


class _TritonInputs:
    """What a layer adds to the residual stream from its own part of `PassContext.layer_inputs`."""

    def __init__(self, inputs: BlockInputs, index: int, activation: str, addition: Addition) -> None:
        self._index = index
        self._gate = joined_weight(inputs.gate)
        self._activation = activation
        self._projection = joined_weight(inputs.projection)
        self._addition = addition

    def __call__(self, x: Tensor, layer_inputs: Tensor) -> LayerOutput:
        gated_inputs = activate_linear(x, self._gate, self._activation, factors=layer_inputs[:, self._index])
        return LayerOutput(*add_linear(gated_inputs, self._projection, x, self._addition))


class TritonLayerInputs:
    """Computes `PassContext.layer_inputs`.

    Args:
        inputs: description of them.
        layers: number of layers.
    """

    def __init__(self, inputs: LayerInputs, layers: int) -> None:
        self._inputs = inputs
        self._layers = layers
        self._projection = joined_weight(inputs.projection)
        self._norm = row_norm(inputs.norm)

    def __call__(self, tokens: Tensor, x: Tensor) -> Tensor:
        """`[nodes, layers, width]` for tokens `[1, nodes]` and the first residual stream `[nodes, hidden]`."""
        projected = linear(x, self._projection).mul_(self._inputs.projection_scale)
        normed = self._norm(projected.unflatten(1, (self._layers, -1)))
        embedded = self._inputs.embedding(tokens).view(normed.shape)
        return normed.add_(embedded).mul_(self._inputs.sum_scale)
