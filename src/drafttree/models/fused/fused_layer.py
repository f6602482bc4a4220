"""A decoder layer of any known family in few operations, on the weights of the modules that it replaces."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from drafttree.models.families import Attention, Block, BlockInputs, Experts
from drafttree.models.fused.fused_linear import FusedProduct, fuse
from drafttree.models.fused.pass_inputs import PassAttention
from drafttree.models.norms import norm_call

NormCall = Callable[[Tensor], Tensor]


class PassContext(NamedTuple):
    """The values that all layers of one kind share in a pass.

    Attributes:
        cosine: `[nodes, 1, rotated]`.
        sine: the same, negative in its first half.
        attention: attends to the rows of the KV caches.
        layer_inputs: `[nodes, layers, width]` that layers read beside the residual stream, None in most families.
    """

    cosine: Tensor
    sine: Tensor
    attention: PassAttention
    layer_inputs: Tensor | None = None

    def rotate(self, heads: Tensor) -> None:
        """Apply the rotary embedding to queries and keys `[nodes, heads, width]` in place."""
        width = self.cosine.shape[-1]
        rotated_heads = heads if heads.shape[-1] == width else heads[..., :width]
        halves = rotated_heads.roll(width // 2, -1)
        rotated_heads.mul_(self.cosine).addcmul_(halves, self.sine)


class LayerOutput(NamedTuple):
    """What a layer hands on to the next one.

    Attributes:
        residual: `[nodes, hidden]` the residual stream.
        normed: the residual stream after the norm with which its reader begins; None if the reader norms it.
    """

    residual: Tensor
    normed: Tensor | None


class FusedLayer:
    """One decoder layer.

    Args:
        block: description of the layer.
        index: index of the layer.

    Attributes:
        kind: kind of the layer; all layers of a kind share a `PassContext`.
    """

    def __init__(self, block: Block, index: int) -> None:
        self.kind = block.attention.kind
        self._attention = _FusedAttention(block.attention)
        self._before_attention = _before(block.before_attention)
        self._after_attention = _after(block.after_attention)
        self._before_mlp = _before(block.before_mlp)
        self._after_mlp = _after(block.after_mlp)
        self._out = fuse(block.attention.out)
        self._mlp = block.mlp
        if block.mlp:
            self._gate_up = fuse(*block.mlp.gate_up)
            self._down = fuse(block.mlp.down)
        self._experts = _FusedExperts(block.experts) if block.experts else None
        self._parallel = block.parallel
        self._multiplier = block.multiplier
        self._scalar = block.scalar
        self._inputs = _FusedInputs(block.inputs, index) if block.inputs else None

    def forward(self, x: Tensor, attention_input: Tensor | None, context: PassContext, rows: Any) -> LayerOutput:
        """See `DecoderLayer`."""
        if attention_input is None:
            attention_input = self._before_attention(x)
        attention_out = self._attention(attention_input, context, rows)
        residual = self._add(x, self._out, attention_out, self._after_attention)
        residual = self._feed(residual, x if self._parallel else residual)
        if self._inputs and context.layer_inputs is not None:
            residual = residual + self._inputs(residual, context.layer_inputs, self._activation)
        return LayerOutput(residual if self._scalar == 1 else residual * self._scalar, None)

    @property
    def _activation(self) -> Callable[[Tensor], Tensor]:
        assert self._mlp
        return self._mlp.activation

    def _feed(self, x: Tensor, mlp_input: Tensor) -> Tensor:
        """The residual stream after the MLP, which reads `mlp_input`, and the experts."""
        if self._experts is None:
            return self._add(x, self._down, self._inner(self._before_mlp(mlp_input)), self._after_mlp)
        experts_out = self._experts(x)
        if self._mlp is None:
            return x + experts_out
        mlp_out = self._experts.after_mlp(self._down(self._inner(self._before_mlp(mlp_input))))
        ffn_out = mlp_out + experts_out
        return x + (self._after_mlp(ffn_out) if self._after_mlp else ffn_out)

    def _inner(self, normed: Tensor) -> Tensor:
        """The activations that the MLP's last projection reads."""
        assert self._mlp
        if not self._mlp.gated:
            return self._activation(self._gate_up(normed))
        gate, up = self._gate_up(normed).chunk(2, -1)
        return self._activation(gate).mul_(up)

    def _add(self, x: Tensor, projection: FusedProduct, out: Tensor, norm: NormCall | None) -> Tensor:
        """Add an output to the residual stream after its projection and its norm."""
        if norm is None and self._multiplier == 1:
            return projection.add_to(x, out)
        projected_out = projection(out)
        return torch.add(x, norm(projected_out) if norm else projected_out, alpha=self._multiplier)


class _FusedAttention:
    """Attention without its last projection."""

    def __init__(self, attention: Attention) -> None:
        self._attention = attention
        self._qkv = fuse(*attention.qkv)
        self._query_heads = attention.query_heads
        self._rotated = self._query_heads + (attention.key_heads if attention.projected else 0)
        self._head_norm = _head_norm(attention) if attention.query_norm else None
        self._value_norm = norm_call(attention.value_norm) if attention.value_norm else None

    def __call__(self, attention_input: Tensor, context: PassContext, rows: Any) -> Tensor:
        """The result of attention, `[nodes, query heads * width]`."""
        attention = self._attention
        if attention.interleaved:
            query, key, value = self._qkv(attention_input).unflatten(1, (-1, 3, attention.width)).unbind(2)
            context.rotate(query)
            context.rotate(key)
            return context.attention.attend(query, key, value, rows, attention.scale)
        heads = self._qkv(attention_input).unflatten(1, (-1, attention.width))
        rotated_heads = heads[:, : self._rotated]
        value = heads[:, -attention.key_heads :]
        if self._value_norm:  # first, since a key may be the value too, and is rotated in place
            value = self._value_norm(value)
        if self._head_norm:
            rotated_heads = self._head_norm(rotated_heads)
        if attention.is_rotated:
            context.rotate(rotated_heads)
        query, key = rotated_heads[:, : self._query_heads], rotated_heads[:, self._query_heads :]
        if not attention.projected:
            return context.attention.read(query, rows, attention.scale)
        return context.attention.attend(query, key, value, rows, attention.scale)


class _FusedExperts:
    """A mixture of experts; the module itself routes tokens and runs the experts."""

    def __init__(self, experts: Experts) -> None:
        self._mix = experts.mix
        self._before = norm_call(experts.before)
        self._after = _before(experts.after)
        self.after_mlp = _before(experts.after_mlp)

    def __call__(self, x: Tensor) -> Tensor:
        return self._after(self._mix(x, self._before(x)))


class _FusedInputs:
    """What a layer adds to the residual stream from its own part of `LayerInputs`."""

    def __init__(self, inputs: BlockInputs, index: int) -> None:
        self._index = index
        self._gate = fuse(inputs.gate)
        self._projection = fuse(inputs.projection)
        self._after = norm_call(inputs.after)

    def __call__(self, x: Tensor, layer_inputs: Tensor, activation: NormCall) -> Tensor:
        gated_inputs = activation(self._gate(x)) * layer_inputs[:, self._index]
        return self._after(self._projection(gated_inputs))


def _before(norm: Any) -> NormCall:
    return (lambda x: x) if norm is None else norm_call(norm)


def _after(norm: Any) -> NormCall | None:
    return None if norm is None else norm_call(norm)


def _head_norm(attention: Attention) -> NormCall:
    """The norm of a tensor of all query heads and, after them, all key heads."""
    query = norm_call(attention.query_norm)
    query_heads = attention.query_heads
    if attention.key_norm is None:  # a layer that shares keys has none
        return query
    key = norm_call(attention.key_norm)
    if len(attention.query_norm.weight) != attention.width:
        query, key = _over_all_heads(query), _over_all_heads(key)
    return lambda heads: torch.cat((query(heads[:, :query_heads]), key(heads[:, query_heads:])), 1)


def _over_all_heads(norm: NormCall) -> NormCall:
    return lambda heads: norm(heads.flatten(1)).view_as(heads)
