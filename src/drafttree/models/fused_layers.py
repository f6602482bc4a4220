"""Decoder layers of the Llama and GPT-NeoX families, and the linear layers and norms in them, in few operations.

They run on the weights of the modules they stand in for.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedConfig

from drafttree.models.fingerprint import samples, version

PACKED_FROM = 1 << 19
"""Elements of a weight from which a packed copy pays on a CPU."""
PACKED_FOR = 8
"""Rows the packed copy is laid out for."""

_packed_copies = WeakTensorKeyDictionary()


class FusedLinear:
    """One or several linear layers of one input as one product, by the faster of two libraries.

    On a CPU MKL reads a float32 weight as it is, which is best for one row; for several it packs the weight anew in
    every call, which costs two to three passes over one row. oneDNN keeps a packed copy of large weights instead: twice
    the memory of those, and several rows cost little more than one. The copy does not follow changes of the weight.

    Args:
        weight: `[out, in]`.
        bias: `[out]`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.t(), bias
        large = weight.numel() >= PACKED_FROM and weight.dtype == torch.float32
        packs = large and weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        self._packed = _pack(weight) if packs else None

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        if self._packed is not None and len(x) > 1:
            return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._packed, self._bias, "none", [], "")
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        if self._packed is not None and len(x) > 1:
            return self(x).add_(residual)
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)


def fuse(*layers: Any) -> FusedLinear:
    """Linear layers of one input as one product; their own weights become views of the fused one."""
    weight = _join([layer.weight for layer in layers])
    return FusedLinear(weight, _join([layer.bias for layer in layers]) if layers[0].bias is not None else None)


def _pack(weight: Tensor) -> Tensor:
    """oneDNN's copy of a weight, made once for as long as the weight is unchanged, for a target and its head alike."""
    stamp = (weight.data_ptr(), version(weight), torch.cat(samples(weight)).tolist())
    if weight not in _packed_copies or _packed_copies[weight][0] != stamp:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
        _packed_copies[weight] = stamp, packed
    return _packed_copies[weight][1]


def _join(parts: list[Tensor]) -> Tensor:
    """Parameters stacked along their first dimension, in the memory order they have.

    Parameters that were joined before are not copied again: several backends may share a module.
    """
    if len(parts) == 1:
        return parts[0]
    if _are_joined(parts):
        return parts[0].data.as_strided((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].stride())
    input_major = parts[0].ndim == 2 and not parts[0].is_contiguous()
    with torch.inference_mode(parts[0].is_inference()):  # parameters made in that mode stay usable only in it
        columns = [part.data.t() if input_major else part.data for part in parts]
        whole = torch.cat(columns, 1).t() if input_major else torch.cat(columns)
        for part, own in zip(parts, whole.split([len(part) for part in parts]), strict=True):
            part.data = own
    return whole


def _are_joined(parts: list[Tensor]) -> bool:
    """Whether parameters are consecutive rows of one tensor."""
    first, row = parts[0], parts[0].data_ptr()
    for part in parts:
        if (part.data_ptr(), part.stride()) != (row, first.stride()):
            return False
        row += len(part) * first.stride(0) * first.element_size()
    return len({part.untyped_storage().data_ptr() for part in parts}) == 1


def rms_norm(norm: Any) -> Callable[[Tensor], Tensor]:
    """A transformers RMS norm as one call.

    On a CPU `F.rms_norm` is nine small operations; dividing by a length that includes epsilon is four. The scale is
    a copy there, which does not follow changes of the weight.
    """
    weight, epsilon = norm.weight.detach(), norm.variance_epsilon
    if weight.is_cuda or weight.dtype != torch.float32:
        return lambda x: F.rms_norm(x, weight.shape, weight, epsilon)
    scale = weight * math.sqrt(len(weight))
    shortest = torch.tensor(math.sqrt(len(weight) * epsilon))
    return lambda x: (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(shortest)).mul_(scale)


class PassContext(NamedTuple):
    """The values that all layers of one pass share.

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
