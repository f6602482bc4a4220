"""Decoder layers of the Llama and GPT-NeoX kinds, and the norms in them, in few operations.

They run on the weights of the modules they stand in for.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from drafttree.models.cache.kv_cache import CacheLayout, LayerShape
from drafttree.models.fused.fused_linear import FusedProduct, fuse
from drafttree.models.fused.pass_inputs import PassAttention
from drafttree.models.module.long_rope import short_frequencies_of
from drafttree.models.windows import EVERYTHING, Span, span_of

SMALLEST_TABLE = 1024
"""Positions of the first table."""


class RotaryAngles:
    """Cosines and sines of a rotary embedding of transformers, by position.

    On a CPU they are kept in a table, which grows with the positions that are asked for: a pass looks them up in three
    operations instead of computing them in ten. A recorded pass computes them, since its memory must not move.

    Args:
        rotary: the embedding.
        dtype: dtype of the cosines and sines.
        layer_type: type of the layers they are for, where the embedding knows several (Gemma 3).
        frequencies: `[pairs]` in place of the embedding's own.
    """

    def __init__(
        self, rotary: Any, dtype: torch.dtype, layer_type: str | None = None, frequencies: Tensor | None = None
    ) -> None:
        prefix = f"{layer_type}_" if hasattr(rotary, f"{layer_type}_inv_freq") else ""
        own = short_frequencies_of(rotary, layer_type) if frequencies is None else frequencies
        self._frequencies = own.float().clone()
        self._scaling: float = getattr(rotary, f"{prefix}attention_scaling")
        self._dtype = dtype
        self._table = self._make_table(SMALLEST_TABLE) if self._frequencies.is_cpu else None

    def of(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines `[nodes, 1, rotated]` of positions `[1, nodes]`, and the sines, negative in their first half."""
        if self._table is None:
            return self._compute(positions)
        if (last := int(positions.numpy().max())) >= self._table.shape[1]:
            self._table = self._make_table(2 * last)
        cosine, sine = self._table.index_select(1, positions[0])
        return cosine, sine

    def _make_table(self, rows: int) -> Tensor:
        return torch.stack(self._compute(torch.arange(rows)))

    def _compute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        turns = positions.reshape(-1, 1, 1) * self._frequencies
        cosine, sine = turns.cos() * self._scaling, turns.sin() * self._scaling
        return torch.cat((cosine, cosine), -1).to(self._dtype), torch.cat((-sine, sine), -1).to(self._dtype)


def rms_norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """A transformers RMS norm as one call; whatever else is called a norm stays as it is.

    On a CPU `F.rms_norm` is nine small operations; dividing by a length that includes epsilon is four. The scale is
    a copy there, which does not follow changes of the weight.
    """
    if getattr(norm, "weight", None) is None:
        return norm
    weight, epsilon = norm.weight.detach(), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    offset = norm_offset(norm, weight)
    if epsilon is None or offset is None:
        return norm
    if weight.is_cuda or weight.dtype != torch.float32:
        return norm if offset else lambda x: F.rms_norm(x, weight.shape, weight, epsilon)
    scale = (weight + offset) * math.sqrt(len(weight))
    shortest = torch.tensor(math.sqrt(len(weight) * epsilon))
    return lambda x: (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(shortest)).mul_(scale)


@torch.inference_mode()
def norm_offset(norm: Any, weight: Tensor) -> int | None:
    """The number an RMS norm adds to its weight (1 in Gemma), None if it does something else."""
    scale = norm(torch.full_like(weight, 64.0))  # so long that epsilon does not show
    return next((offset for offset in (0, 1) if torch.allclose(scale, weight + offset, rtol=1e-2, atol=1e-3)), None)


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
        rotated = heads if heads.shape[-1] == width else heads[..., :width]
        halves = rotated.roll(width // 2, -1)
        rotated.mul_(self.cosine).addcmul_(halves, self.sine)


class LayerKind(NamedTuple):
    """What layers of one kind share in a pass.

    Attributes:
        layer_type: transformers' name of the type, None where all layers are alike.
        span: how far back they attend.
        groups: query heads that share a key head.
    """

    layer_type: str | None
    span: Span
    groups: int

    @classmethod
    def of(cls, attention: Any) -> "LayerKind":
        """The kind of an attention layer."""
        types = getattr(attention.config, "layer_types", None)
        layer_type = types[attention.layer_idx] if types else None
        return cls(layer_type, span_of(attention), attention.num_key_value_groups)


def has_rotary(attention: Any) -> bool:
    """Whether an attention layer turns queries and keys; some layers of SmolLM3 do not (NoPE)."""
    return bool(getattr(attention, "use_rope", True))


def projected_of(attention: Any) -> int:
    """What an attention layer projects of each key head: its key and its value, or one for both, or none (Gemma 4)."""
    if getattr(attention, "is_kv_shared_layer", False):
        return 0
    return 1 if getattr(attention, "v_proj", attention) is None else 2


def head_projections(attention: Any) -> list[Any]:
    """The linear layers whose outputs are queries, keys and values."""
    names = ("q_proj", "k_proj", "v_proj")[: 1 + projected_of(attention)]
    return _projections(attention, "qkv_proj", *names)


def key_owners(blocks: Iterable[Any]) -> list[int]:
    """By layer, the one whose keys and values it attends to: itself, but for those that share others' (Gemma 4).

    Raises:
        AttributeError: there are none that a layer could share.
    """
    owners, stored = list[int](), dict[str, int]()
    for index, block in enumerate(blocks):
        attention: Any = getattr(block, "self_attn", block)
        owners.append(index if projected_of(attention) else stored.get(attention.layer_type, -1))
        if owners[-1] < 0:
            raise AttributeError(f"there are no keys that layer {index} could share")
        if getattr(attention, "store_full_length_kv", False):
            stored[attention.layer_type] = index
    return owners


def layout_of(shapes: Sequence[tuple[int, int]], owners: Sequence[int]) -> CacheLayout:
    """The layout of KV caches, by the key heads of each layer and their width, and as of `key_owners`.

    Raises:
        AttributeError: a layer's heads are not of the shape of the keys that it shares.
    """
    for shape, owner in zip(shapes, owners, strict=True):
        if shape != shapes[owner]:
            raise AttributeError("layers with heads of several shapes share keys")
    return CacheLayout({index: LayerShape(*shapes[index], shapes[index][1]) for index in sorted({*owners})})


class BlockNorms(NamedTuple):
    """The norms of a decoder layer; after attention and MLP there may be none."""

    before_attention: Callable[[Tensor], Tensor]
    after_attention: Callable[[Tensor], Tensor] | None
    before_mlp: Callable[[Tensor], Tensor]
    after_mlp: Callable[[Tensor], Tensor] | None

    @classmethod
    def of(cls, block: Any) -> "BlockNorms":
        """The norms of a layer of transformers, whose name for a norm does not always say where it is."""
        second = rms_norm(block.post_attention_layernorm)
        if not hasattr(block, "post_feedforward_layernorm"):
            return cls(rms_norm(block.input_layernorm), None, second, None)
        last = rms_norm(block.post_feedforward_layernorm)
        if not hasattr(block, "pre_feedforward_layernorm"):
            return cls(lambda x: x, second, lambda x: x, last)
        return cls(rms_norm(block.input_layernorm), second, rms_norm(block.pre_feedforward_layernorm), last)


class FusedLayer(Protocol):
    """One decoder layer.

    Attributes:
        key_heads: attention heads of keys and values.
        groups: query heads that share each of them.
        width: width of a head.
        kind: what it shares with others.
    """

    key_heads: int
    groups: int
    width: int
    kind: LayerKind

    def forward(self, x: Tensor, context: PassContext, rows: Any) -> Tensor:
        """The residual stream `[nodes, hidden]` after the layer, given its part of the pass's rows."""
        ...


class LlamaLayer:
    """A layer with rotary grouped-query attention, a gated MLP, and RMS norms before or after them or both.

    Where the norms are tells the families apart: before (Llama, Mistral, Qwen, Phi-3, Granite, SmolLM3), after (OLMo 2
    and 3) or on both sides (Gemma 3). Qwen3 and Gemma 3 norm every query and key head, OLMo all heads together.
    """

    def __init__(self, block: Any, config: PreTrainedConfig) -> None:
        attention, mlp = block.self_attn, block.mlp
        self.kind = LayerKind.of(attention)
        self.width: int = attention.head_dim
        self._qkv = fuse(*head_projections(attention))
        self.groups: int = attention.num_key_value_groups
        self._projected = projected_of(attention)
        self.key_heads: int = self._qkv.width // self.width // (self._projected + self.groups)
        self._scale: float = attention.scaling
        self._turns = has_rotary(attention)
        self._query_heads = self.key_heads * self.groups
        self._rotated = self._query_heads + (self.key_heads if self._projected else 0)
        self._norms = BlockNorms.of(block)
        self._head_norm = _head_norm(attention, self._query_heads) if hasattr(attention, "q_norm") else None
        self._value_norm = rms_norm(attention.v_norm) if hasattr(attention, "v_norm") else None
        self._experts = mlp if hasattr(mlp, "experts") else None
        if self._experts is None:
            self._gate_up = fuse(*_projections(mlp, "gate_up_proj", "gate_proj", "up_proj"))
            self._activation = mlp.act_fn if hasattr(mlp, "act_fn") else mlp.activation_fn
            self._down = fuse(mlp.down_proj)
        self._out = fuse(attention.o_proj)
        self._multiplier: float = getattr(block, "residual_multiplier", 1.0)

    def forward(self, x: Tensor, context: PassContext, rows: Any) -> Tensor:
        return self.forward_from(x, self._norms.before_attention(x), context, rows)

    def forward_from(self, x: Tensor, normed: Tensor, context: PassContext, rows: Any) -> Tensor:
        """The residual stream after the layer, whose attention reads `normed` instead of its own input norm."""
        heads = self._qkv(normed).unflatten(1, (-1, self.width))
        rotated, value = heads[:, : self._rotated], heads[:, -self.key_heads :]
        if self._value_norm:  # before a key that is the value too is turned in place
            value = self._value_norm(value)
        if self._head_norm:
            rotated = self._head_norm(rotated)
        if self._turns:
            context.rotate(rotated)
        query, key = rotated[:, : self._query_heads], rotated[:, self._query_heads :]
        if self._projected:
            attended = context.attention.attend(query, key, value, rows, self._scale)
        else:
            attended = context.attention.read(query, rows, self._scale)
        return self._feed(self._add(x, self._out, attended, self._norms.after_attention))

    def _feed(self, x: Tensor) -> Tensor:
        """The residual stream after the MLP, or the experts in its place."""
        normed = self._norms.before_mlp(x)
        if self._experts is not None:  # as the module routes them
            return x + self._experts(normed[None])[0]
        return self._add(x, self._down, self._inner(normed), self._norms.after_mlp)

    def _inner(self, normed: Tensor) -> Tensor:
        """What the MLP's last projection reads."""
        gate, up = self._gate_up(normed).chunk(2, -1)
        return self._activation(gate).mul_(up)

    def _add(self, x: Tensor, projection: FusedProduct, out: Tensor, norm: Callable[[Tensor], Tensor] | None) -> Tensor:
        """The residual stream after an output was projected and normed."""
        if norm is None and self._multiplier == 1:
            return projection.add_to(x, out)
        projected = projection(out)
        return torch.add(x, norm(projected) if norm else projected, alpha=self._multiplier)


class NeoXLayer:
    """A layer of GPT-NeoX: query, key and value interleaved by heads, attention and MLP in parallel or in sequence."""

    groups = 1

    kind = LayerKind(None, EVERYTHING, groups)

    def __init__(self, block: Any, config: PreTrainedConfig) -> None:
        attention, mlp = block.attention, block.mlp
        self.width: int = attention.head_size
        self.key_heads: int = config.num_attention_heads
        self._scale: float = attention.scaling
        self._parallel: bool = block.use_parallel_residual
        self._input_norm, self._mlp_norm = block.input_layernorm, block.post_attention_layernorm
        parts = attention.query_key_value, attention.dense, mlp.dense_h_to_4h, mlp.dense_4h_to_h
        self._qkv, self._out, self._up, self._down = (fuse(part) for part in parts)
        self._activation = mlp.act

    def forward(self, x: Tensor, context: PassContext, rows: Any) -> Tensor:
        heads = self._qkv(self._input_norm(x)).unflatten(1, (-1, 3, self.width))
        query, key, value = heads.unbind(2)
        context.rotate(query)
        context.rotate(key)
        attended = self._out.add_to(x, context.attention.attend(query, key, value, rows, self._scale))
        normed = self._mlp_norm(x if self._parallel else attended)
        return self._down.add_to(attended, self._activation(self._up(normed)))


def _projections(part: Any, joined: str, *names: str) -> list[Any]:
    """Linear layers of one input, which some families (Phi-3) have as one."""
    return [getattr(part, joined)] if hasattr(part, joined) else [getattr(part, name) for name in names]


def _head_norm(attention: Any, query_heads: int) -> Callable[[Tensor], Tensor]:
    query = rms_norm(attention.q_norm)
    if not hasattr(attention, "k_norm"):  # of a layer that shares keys
        return query
    key = rms_norm(attention.k_norm)
    if len(attention.q_norm.weight) != attention.head_dim:
        query, key = _over_all_heads(query), _over_all_heads(key)
    return lambda heads: torch.cat((query(heads[:, :query_heads]), key(heads[:, query_heads:])), 1)


def _over_all_heads(norm: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda heads: norm(heads.flatten(1)).view_as(heads)
