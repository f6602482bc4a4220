"""A lean decoder for the Llama and GPT-NeoX families: the same function as transformers' module, with less in between.

A pass over a small model is mostly the price of calling it: a transformers layer runs some thirty operations under a
dozen Python frames. Here a layer is a dozen operations on weights that lie fused (query, key and value; gate and up).
The fused weights are the module's own: its parameters become views of them, and the module keeps working.
`drafttree.models.validation.wrap` compares the two before it prefers this one.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedConfig

from drafttree.models.base import Output
from drafttree.models.huggingface import HuggingFaceModel
from drafttree.models.kv_cache import TreeCache
from drafttree.models.tree_attention import TreePlan

Transform = Callable[[Tensor], Tensor]

PACKED_FROM = 1 << 19
"""Elements of a weight from which a packed copy pays on a CPU."""
PACKED_FOR = 8
"""Rows the packed copy is laid out for."""

LLAMAS = {"llama", "mistral", "qwen2", "qwen3"}
STATIC_ROPES = {"default", "linear", "llama3", "yarn"}

_copies = WeakTensorKeyDictionary()


class LeanModel(HuggingFaceModel):
    """A wrapped model whose passes run on its fused weights. See `drafttree.models.base.Model` for the contract.

    Args:
        wrapped: a model for which `fits` is true.
    """

    def __init__(self, wrapped: HuggingFaceModel) -> None:
        self.__dict__.update(vars(wrapped))
        decoder: Any = self.module.get_decoder()
        config = self.module.config
        self._embed: Any = self.module.get_input_embeddings()
        self._norm = rms_norm(decoder.norm) if config.model_type in LLAMAS else decoder.final_layer_norm
        self._head = product(self.module.get_output_embeddings())
        self._rotary = decoder.rotary_emb
        kind = LlamaLayer if config.model_type in LLAMAS else NeoXLayer
        self._blocks: list[Layer] = [kind(block, config) for block in decoder.layers]

    @torch.inference_mode()
    def forward(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        last_only: bool = False,
        hidden_layers: tuple[int, ...] = (),
    ) -> Output:
        first = self._blocks[0]
        mask = TreePlan(cache, positions, visible, self.dtype).mask(first.groups, None)
        where = slice(cache.get_seq_length(), None)
        rows = cache.rows(self._embed.weight, first.key_heads, first.width, tokens.shape[1])
        output = self.run(tokens, positions, mask, rows, where, last_only, hidden_layers)
        cache.grow(positions)
        return output

    def run(
        self,
        tokens: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        rows: list[tuple[Tensor, Tensor]],
        where: slice | Tensor,
        last_only: bool,
        hidden_layers: tuple[int, ...],
    ) -> Output:
        """A pass on memory that is given.

        Args:
            tokens: `[batch, nodes]` token ids.
            positions: `[batch, nodes]`.
            mask: additive `[batch, 1, groups * nodes, rows]`, None where every row is visible.
            rows: per layer keys and values `[batch, heads, rows, width]`.
            where: which of the rows are the new tokens'.
            last_only: as for `forward`.
            hidden_layers: likewise.
        """
        batch, nodes = tokens.shape
        turn = Pass(batch, nodes, *angles(self._rotary, positions, self.dtype), mask, where)
        x = self._embed(tokens).flatten(0, 1)
        inputs: list[Tensor] = []
        for block, (keys, values) in zip(self._blocks, rows, strict=True):
            inputs.append(x)
            x = block.forward(x, turn, keys, values)
        x = self._norm(x)
        inputs.append(x)
        x = x.view(batch, nodes, -1)
        scored = x[:, -1:] if last_only else x
        logits = self._head.of(scored.flatten(0, 1)).view(batch, scored.shape[1], -1)
        return Output(logits, tuple(inputs[layer].view(x.shape) for layer in hidden_layers))


def angles(rotary: Any, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines `[batch * nodes, 1, rotated]` of a rotary embedding of transformers."""
    turns = positions.view(-1, 1, 1) * rotary.inv_freq
    cosine, sine = turns.cos() * rotary.attention_scaling, turns.sin() * rotary.attention_scaling
    return torch.cat((cosine, cosine), -1).to(dtype), torch.cat((-sine, sine), -1).to(dtype)


def fits(wrapped: HuggingFaceModel) -> bool:
    """Whether a lean decoder can stand in for a wrapped model: its family, plain linear layers, no sliding window."""
    module, config = wrapped.module, wrapped.module.config
    kinds = set(getattr(config, "layer_types", None) or {"full_attention"})
    windowed = kinds != {"full_attention"} or (config.model_type == "mistral" and config.sliding_window is not None)
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type not in LLAMAS | {"gpt_neox"} or windowed or rope.get("rope_type") not in STATIC_ROPES:
        return False
    parts = [part for part in module.modules() if hasattr(part, "weight")]
    plain = all(type(part) is nn.Linear or not isinstance(part, nn.Linear) for part in parts)
    whole = {parameter.device for parameter in module.parameters()} == {wrapped.device}
    return plain and whole and not any(hasattr(part, "_hf_hook") for part in module.modules())


class Pass(NamedTuple):
    """What the layers of one pass share.

    Attributes:
        batch: sequences.
        nodes: tokens in each.
        cosine: `[batch * nodes, 1, rotated]`.
        sine: the same, negative in its first half.
        mask: as `TreePlan.mask` makes it.
        where: rows of the cache that are the nodes'.
    """

    batch: int
    nodes: int
    cosine: Tensor
    sine: Tensor
    mask: Tensor | None
    where: slice | Tensor

    def rotate(self, heads: Tensor) -> None:
        """Turn queries and keys `[batch * nodes, heads, width]` in place."""
        rotated = heads[..., : self.cosine.shape[-1]]
        halves = rotated.roll(self.cosine.shape[-1] // 2, -1)
        rotated.mul_(self.cosine).addcmul_(halves, self.sine)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Store new rows `[batch * nodes, key heads, width]` and attend to all; `[batch * nodes, heads * width]`."""
        heads, width = key.shape[1:]
        keys[:, :, self.where] = key.unflatten(0, (self.batch, -1)).transpose(1, 2)
        values[:, :, self.where] = value.unflatten(0, (self.batch, -1)).transpose(1, 2)
        stacked = query.reshape(self.batch, self.nodes, heads, -1, width).permute(0, 2, 3, 1, 4)
        stacked = stacked.reshape(self.batch, heads, -1, width)
        out = F.scaled_dot_product_attention(stacked, keys, values, attn_mask=self.mask, scale=scale)
        return out.view(self.batch, -1, self.nodes, width).transpose(1, 2).reshape(len(query), -1)


class Layer(Protocol):
    """One layer of a lean decoder.

    Attributes:
        key_heads: heads of keys and values.
        groups: query heads that share each of them.
        width: of a head.
    """

    key_heads: int
    groups: int
    width: int

    def forward(self, x: Tensor, turn: Pass, keys: Tensor, values: Tensor) -> Tensor:
        """The residual stream `[batch * nodes, hidden]` after the layer, whose cache rows are given."""
        ...


class LlamaLayer:
    """A pre-norm layer with rotary grouped-query attention and a gated MLP; Qwen3's head norms where it has them."""

    def __init__(self, block: Any, config: PreTrainedConfig) -> None:
        attention, mlp = block.self_attn, block.mlp
        self.width: int = attention.head_dim
        self.key_heads: int = attention.k_proj.out_features // self.width
        self.groups: int = attention.num_key_value_groups
        self._scale: float = attention.scaling
        self._turned = self.key_heads * (1 + self.groups)
        self._before, self._between = rms_norm(block.input_layernorm), rms_norm(block.post_attention_layernorm)
        self._head_norm = _head_norm(attention, self.groups * self.key_heads) if hasattr(attention, "q_norm") else None
        self._qkv = fuse(attention.q_proj, attention.k_proj, attention.v_proj)
        self._gate_up = fuse(mlp.gate_proj, mlp.up_proj)
        self._out, self._down, self._act = product(attention.o_proj), product(mlp.down_proj), mlp.act_fn

    def forward(self, x: Tensor, turn: Pass, keys: Tensor, values: Tensor) -> Tensor:
        return self.carry(x, self._before(x), turn, keys, values)

    def carry(self, x: Tensor, normed: Tensor, turn: Pass, keys: Tensor, values: Tensor) -> Tensor:
        """The residual stream after the layer, whose attention reads something else than its norm."""
        heads = self._qkv.of(normed).unflatten(1, (-1, self.width))
        turned, value = heads[:, : self._turned], heads[:, self._turned :]
        if self._head_norm:
            turned = self._head_norm(turned)
        turn.rotate(turned)
        query, key = turned[:, : -self.key_heads], turned[:, -self.key_heads :]
        x = self._out.onto(x, turn.attend(query, key, value, keys, values, self._scale))
        gate, up = self._gate_up.of(self._between(x)).chunk(2, -1)
        return self._down.onto(x, self._act(gate).mul_(up))


class NeoXLayer:
    """A layer of GPT-NeoX: query, key and value fused by heads, attention and MLP side by side or in turn."""

    groups = 1

    def __init__(self, block: Any, config: PreTrainedConfig) -> None:
        attention = block.attention
        self.width: int = attention.head_size
        self.key_heads: int = config.num_attention_heads
        self._scale: float = attention.scaling
        self._before, self._between = block.input_layernorm, block.post_attention_layernorm
        self._qkv, self._out = product(attention.query_key_value), product(attention.dense)
        self._up, self._act, self._down = (
            product(block.mlp.dense_h_to_4h),
            block.mlp.act,
            product(block.mlp.dense_4h_to_h),
        )
        self._parallel: bool = block.use_parallel_residual

    def forward(self, x: Tensor, turn: Pass, keys: Tensor, values: Tensor) -> Tensor:
        heads = self._qkv.of(self._before(x)).unflatten(1, (-1, 3, self.width))
        query, key, value = heads.unbind(2)
        turn.rotate(query)
        turn.rotate(key)
        mixed = self._out.onto(x, turn.attend(query, key, value, keys, values, self._scale))
        inner = self._between(x if self._parallel else mixed)
        return self._down.onto(mixed, self._act(self._up.of(inner)))


class Product:
    """A linear layer as one operation, by the faster of two libraries.

    On a CPU MKL reads a float32 weight as it lies, which is best for one row; for several it packs the weight anew in
    every call, which costs two to three passes over one row. oneDNN keeps a packed copy of large weights instead: twice
    the memory of those, and several rows cost little more than one.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight.t(), bias
        large = weight.numel() >= PACKED_FROM and weight.dtype == torch.float32
        packs = large and weight.device.type == "cpu" and torch.backends.mkldnn.is_available()
        self._packed = _packed(weight) if packs else None

    def of(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        if self._packed is not None and len(x) > 1:
            return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._packed, self._bias, "none", [], "")
        return torch.mm(x, self._weight) if self._bias is None else torch.addmm(self._bias, x, self._weight)

    def onto(self, residual: Tensor, x: Tensor) -> Tensor:
        """The product of `x` added to a residual `[rows, out]`."""
        if self._packed is not None and len(x) > 1:
            return self.of(x).add_(residual)
        out = torch.addmm(residual, x, self._weight)
        return out if self._bias is None else out.add_(self._bias)


def _packed(weight: Tensor) -> Tensor:
    """oneDNN's copy of a weight, of which there is one however many products use it."""
    if weight not in _copies:
        _copies[weight] = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
    return _copies[weight]


def product(layer: Any) -> Product:
    """A linear layer as a `Product`."""
    return Product(layer.weight, layer.bias)


def fuse(*layers: nn.Linear) -> Product:
    """Linear layers of one input as one; their own weights become views of the fused one."""
    weight = _joined([layer.weight for layer in layers])
    return Product(weight, _joined([layer.bias for layer in layers]) if layers[0].bias is not None else None)


def _joined(parts: list[Tensor]) -> Tensor:
    """Parameters stacked along their first dimension in the memory order they have."""
    turned = parts[0].ndim == 2 and not parts[0].is_contiguous()
    whole = torch.cat([part.data.t() for part in parts], 1).t() if turned else torch.cat([part.data for part in parts])
    for part, own in zip(parts, whole.split([len(part) for part in parts]), strict=True):
        part.data = own
    return whole


def rms_norm(norm: Any) -> Transform:
    """A transformers RMS norm as one call.

    On a CPU `F.rms_norm` is nine small operations; dividing by a length that includes epsilon is four.
    """
    weight, epsilon = norm.weight.detach(), norm.variance_epsilon
    if weight.is_cuda or weight.dtype != torch.float32:
        return lambda x: F.rms_norm(x, weight.shape, weight, epsilon)
    scale = weight * math.sqrt(len(weight))
    shortest = torch.tensor(math.sqrt(len(weight) * epsilon))
    return lambda x: (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(shortest)).mul_(scale)


def _head_norm(attention: Any, query_heads: int) -> Transform:
    query, key = rms_norm(attention.q_norm), rms_norm(attention.k_norm)
    return lambda heads: torch.cat((query(heads[:, :query_heads]), key(heads[:, query_heads:])), 1)
