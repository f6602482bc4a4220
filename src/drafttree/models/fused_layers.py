"""Decoder layers of the Llama and GPT-NeoX families, as few operations as possible on the weights of their modules."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from drafttree.models.fused_linear import fuse, rms_norm


class PassContext(NamedTuple):
    """What the layers of one pass share.

    Attributes:
        batch: sequences.
        nodes: tokens in each.
        cosine: `[batch * nodes, 1, rotated]`.
        sine: the same, negative in its first half.
        mask: additive attention mask, as `TreePlan.mask` makes it.
        new_rows: rows of the KV cache that are the nodes'.
    """

    batch: int
    nodes: int
    cosine: Tensor
    sine: Tensor
    mask: Tensor | None
    new_rows: slice | Tensor

    def rotate(self, heads: Tensor) -> None:
        """Apply the rotary embedding to queries and keys `[batch * nodes, heads, width]` in place."""
        rotated = heads[..., : self.cosine.shape[-1]]
        halves = rotated.roll(self.cosine.shape[-1] // 2, -1)
        rotated.mul_(self.cosine).addcmul_(halves, self.sine)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store new rows `[batch * nodes, key heads, width]` and attend to all; `[batch * nodes, heads * width]`."""
        heads, width = key.shape[1:]
        keys[:, :, self.new_rows] = key.unflatten(0, (self.batch, -1)).transpose(1, 2)
        values[:, :, self.new_rows] = value.unflatten(0, (self.batch, -1)).transpose(1, 2)
        stacked = query.reshape(self.batch, self.nodes, heads, -1, width).permute(0, 2, 3, 1, 4)
        stacked = stacked.reshape(self.batch, heads, -1, width)
        out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=self.mask, scale=scale)
        return out.view(self.batch, -1, self.nodes, width).transpose(1, 2).reshape(len(query), -1)


class FusedLayer(Protocol):
    """One decoder layer.

    Attributes:
        key_heads: attention heads of keys and values.
        groups: query heads that share each of them.
        width: of a head.
    """

    key_heads: int
    groups: int
    width: int

    def forward(self, x: Tensor, context: PassContext, keys: Tensor, values: Tensor) -> Tensor:
        """The residual stream `[batch * nodes, hidden]` after the layer, given its rows of the KV cache."""
        ...


class LlamaLayer:
    """A pre-norm layer with rotary grouped-query attention and a gated MLP; Qwen3 norms queries and keys as well."""

    def __init__(self, block: Any, config: PreTrainedConfig) -> None:
        attention, mlp = block.self_attn, block.mlp
        self.width: int = attention.head_dim
        self.key_heads: int = attention.k_proj.out_features // self.width
        self.groups: int = attention.num_key_value_groups
        self._scale: float = attention.scaling
        self._rotated = self.key_heads * (1 + self.groups)
        self._input_norm, self._mlp_norm = rms_norm(block.input_layernorm), rms_norm(block.post_attention_layernorm)
        self._head_norm = _head_norm(attention, self.groups * self.key_heads) if hasattr(attention, "q_norm") else None
        self._qkv = fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gate_up = fuse(mlp.gate_proj, mlp.up_proj)
        self._out, self._down, self._activation = fuse(attention.o_proj), fuse(mlp.down_proj), mlp.act_fn

    def forward(self, x: Tensor, context: PassContext, keys: Tensor, values: Tensor) -> Tensor:
        return self.forward_from(x, self._input_norm(x), context, keys, values)

    def forward_from(self, x: Tensor, normed: Tensor, context: PassContext, keys: Tensor, values: Tensor) -> Tensor:
        """The residual stream after the layer, whose attention reads `normed` instead of its own input norm."""
        heads = self._qkv(normed).unflatten(1, (-1, self.width))
        rotated, value = heads[:, : self._rotated], heads[:, self._rotated :]
        if self._head_norm:
            rotated = self._head_norm(rotated)
        context.rotate(rotated)
        query, key = rotated[:, : -self.key_heads], rotated[:, -self.key_heads :]
        x = self._out.add_to(x, context.attend(query, key, value, keys, values, self._scale))
        gate, up = self._gate_up(self._mlp_norm(x)).chunk(2, -1)
        return self._down.add_to(x, self._activation(gate).mul_(up))


class NeoXLayer:
    """A layer of GPT-NeoX: query, key and value interleaved by heads, attention and MLP in parallel or in sequence."""

    groups = 1

    def __init__(self, block: Any, config: PreTrainedConfig) -> None:
        attention, mlp = block.attention, block.mlp
        self.width: int = attention.head_size
        self.key_heads: int = config.num_attention_heads
        self._scale: float = attention.scaling
        self._parallel: bool = block.use_parallel_residual
        self._input_norm, self._mlp_norm = block.input_layernorm, block.post_attention_layernorm
        self._qkv, self._out = fuse(attention.query_key_value), fuse(attention.dense)
        self._up, self._activation, self._down = fuse(mlp.dense_h_to_4h), mlp.act, fuse(mlp.dense_4h_to_h)

    def forward(self, x: Tensor, context: PassContext, keys: Tensor, values: Tensor) -> Tensor:
        heads = self._qkv(self._input_norm(x)).unflatten(1, (-1, 3, self.width))
        query, key, value = heads.unbind(2)
        context.rotate(query)
        context.rotate(key)
        attended = self._out.add_to(x, context.attend(query, key, value, keys, values, self._scale))
        normed = self._mlp_norm(x if self._parallel else attended)
        return self._down.add_to(attended, self._activation(self._up(normed)))


def _head_norm(attention: Any, query_heads: int) -> Callable[[Tensor], Tensor]:
    query, key = rms_norm(attention.q_norm), rms_norm(attention.k_norm)
    return lambda heads: torch.cat((query(heads[:, :query_heads]), key(heads[:, query_heads:])), 1)


def rotary_angles(rotary: Any, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines `[batch * nodes, 1, rotated]` of a rotary embedding of transformers."""
    turns = positions.reshape(-1, 1, 1) * rotary.inv_freq
    cosine, sine = turns.cos() * rotary.attention_scaling, turns.sin() * rotary.attention_scaling
    return torch.cat((cosine, cosine), -1).to(dtype), torch.cat((-sine, sine), -1).to(dtype)
