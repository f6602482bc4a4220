"""The layers of block drafters: transformers' Qwen 3 layers over a context and a block of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.transitions import TRANSITIONS, CandidateSelector, Transition
from drafttree.models import CacheLayout, Segment
from drafttree.models.attention.tree_attention import NAME
from drafttree.models.module.module_inputs import ModuleInputs, as_cache

SELECTOR = "selector"
"""The kind of transition that DFlash2 has."""


@dataclass(frozen=True)
class BlockConfig:
    """Sizes and variants of a block drafter.

    Attributes:
        layer: config of its decoder layers.
        vocab: size of the target's vocabulary.
        draft_vocab: number of tokens it can propose.
        target_hidden: width of the target's hidden states.
        states: number of the target's hidden states that are fused.
        block: number of rows of a block, the root's included.
        mask_token: id of the mask token, the placeholder of tokens to be drafted.
        levels: number of drafted levels.
        from_root: whether the root's row predicts the first level ("sample_from_anchor"), instead of the first mask's.
        causal: for each layer, whether a row attends only to itself and earlier rows of the block.
        sinks: whether attention has sinks: a score per head that takes weight from all rows and has no value.
        value_scale: factor of the weights of values, applied when they are loaded.
        own_mask: whether the mask token has an embedding of its own.
        transition: kind of the transition; None for logits that do not depend on the path.
        rank: width of the transition.
        candidates: number of tokens of a level that the transition allows; 0 for all.
        convolution: number of rows in a convolution kernel (DFlash2); 0 without convolutions.
        group: number of channels that share the row-dependent part of a convolution kernel.
        input_scale: factor of embeddings.
        output_scale: factor of logits.
        softcap: bound of logits; None without.
    """

    layer: Qwen3Config
    vocab: int
    draft_vocab: int
    target_hidden: int
    states: int
    block: int
    mask_token: int
    levels: int
    from_root: bool = False
    causal: tuple[bool, ...] = ()
    sinks: bool = False
    value_scale: float = 1.0
    own_mask: bool = False
    transition: str | None = None
    rank: int = 0
    candidates: int = 0
    convolution: int = 0
    group: int = 1
    input_scale: float = 1.0
    output_scale: float = 1.0
    softcap: float | None = None

    @property
    def rows(self) -> slice:
        """The rows of a block that predict levels, one each."""
        first_row = 0 if self.from_root else 1
        return slice(first_row, first_row + self.levels)

    @property
    def ahead(self) -> tuple[int, ...]:
        """For each layer, how many later rows of the block a row attends to. A window extends in both directions."""
        ahead = list[int]()
        for causal, layer_type in zip(self.causal, self.layer.layer_types or (), strict=True):
            window = self.layer.sliding_window if layer_type == "sliding_attention" else None
            ahead.append(0 if causal else min(window or self.block, self.block) - 1)
        return tuple(ahead)


class BlockLayers(nn.Module):
    """The weights and the forward pass; `state_dict` has the names of z-lab's and DeepSpec's checkpoints.

    Attributes:
        layout: the layout of its KV cache.
        markov_head: the transition, None without.
        target_ids: `[draft_vocab]` the target's id of every draft id, None if the two vocabularies are the same.
    """

    target_ids: Tensor | None

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        layer = config.layer
        width = layer.hidden_size
        eps = layer.rms_norm_eps
        layer._attn_implementation = NAME
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, width)
        self.mask_embedding = nn.Parameter(torch.empty(width)) if config.own_mask else None
        self.fc = nn.Linear(config.states * config.target_hidden, width, bias=False)
        self.hidden_norm = Qwen3RMSNorm(width, eps)
        self.layers = nn.ModuleList(_layer(config, index) for index in range(layer.num_hidden_layers))
        self.norm = Qwen3RMSNorm(width, eps)
        self.lm_head = nn.Linear(width, config.draft_vocab, bias=False)
        self.markov_head = _transition(config)
        self.rotary = Qwen3RotaryEmbedding(layer)
        self.layout = CacheLayout.of_config(layer)
        self.register_buffer("target_ids", None, persistent=False)

    def context(self, hidden_states: HiddenStates) -> Tensor:
        """Fuse the target's hidden states of committed tokens, `[batch, rows, width]`."""
        return self.hidden_norm(self.fc(torch.cat(hidden_states, -1)))

    def keys_and_values(self, context: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The keys and values of every layer `[batch, heads, rows, head_dim]`, of a context at its positions."""
        cos, sin = self.rotary(context, positions)
        kv_pairs = []
        for layer in self.layers:
            attention: Any = layer.self_attn
            heads = *context.shape[:-1], -1, attention.head_dim
            keys = attention.k_norm(attention.k_proj(context).view(heads)).transpose(1, 2)
            values = attention.v_proj(context).view(heads).transpose(1, 2)
            kv_pairs.append((apply_rotary_pos_emb(keys, keys, cos, sin)[1], values))
        return kv_pairs

    def forward(self, segments: Sequence[Segment]) -> Tensor:
        """Compute the states after the final norm `[1, rows, width]` of the blocks of one request or several.

        Args:
            segments: of each request, the root and its mask tokens; their rows join the drafted rows of its KV cache.
        """
        device, dtype = self.embed_tokens.weight.device, self.embed_tokens.weight.dtype
        inputs = dict[int, ModuleInputs]()
        for ahead in {*self.config.ahead}:
            masked_segments = [segment._replace(visible=np.tril(segment.visible, ahead)) for segment in segments]
            inputs[ahead] = ModuleInputs.of(masked_segments, dtype, device)
        tokens, positions, *_ = next(iter(inputs.values()))
        states = self.embed_tokens(tokens)
        if self.mask_embedding is not None:
            states = torch.where((tokens == self.config.mask_token)[..., None], self.mask_embedding, states)
        states = states * self.config.input_scale
        rotary = self.rotary(states, positions)
        for layer, ahead in zip(self.layers, self.config.ahead, strict=True):
            layer_kwargs: Any = {"tree_plan": inputs[ahead].plan, **as_cache(layer, inputs[ahead].cache)}
            if self.config.sinks:
                attention: Any = layer.self_attn
                layer_kwargs["s_aux"] = attention.attention_sink_bias
            states = layer(states, position_embeddings=rotary, **layer_kwargs)
        for segment in segments:
            segment.cache.grow(segment.positions)
        return self.norm(states)

    def logits(self, rows: Tensor) -> Tensor:
        """Logits `[..., draft_vocab]` of rows `[..., width]` after the final norm."""
        logits = self.lm_head(rows)
        config = self.config
        logits = logits if config.output_scale == 1 else logits * config.output_scale
        return logits if config.softcap is None else torch.tanh(logits / config.softcap) * config.softcap

    def in_target_vocab(self, logits: Tensor) -> Tensor:
        """Spread logits `[..., draft_vocab]` over the target's vocabulary; tokens that cannot be drafted get -inf."""
        if self.target_ids is None:
            return logits
        full = logits.new_full((*logits.shape[:-1], self.config.vocab), -torch.inf)
        return full.index_copy_(-1, self.target_ids, logits)


class GroupedConvolution(nn.Module):
    """Two causal convolutions over the rows of a block, before and after another part of a layer (DFlash2).

    A channel's kernel is the sum of a fixed part and a part that depends on the row. The channels of a group share the
    second part.

    Args:
        width: number of channels.
        reach: number of rows in a kernel: the row itself and earlier ones.
        group: number of channels in a group.
    """

    def __init__(self, width: int, reach: int, group: int) -> None:
        super().__init__()
        self.reach = reach
        self.group = group
        self.base_kernel = nn.Parameter(torch.zeros(2, reach, width))
        self.kernel_projection = nn.Linear(width, 2 * reach * (width // group), bias=False)

    def before(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve rows `[blocks, rows, width]`, and return them with the kernels that `after` needs."""
        kernels = self.kernel_projection(rows).unflatten(-1, (2, self.reach, -1))
        return self._convolve(rows, kernels[..., 0, :, :], 0), kernels[..., 1, :, :]

    def after(self, rows: Tensor, kernels: Tensor) -> Tensor:
        """Convolve the output of the part between the convolutions."""
        return self._convolve(rows, kernels, 1)

    def _convolve(self, rows: Tensor, kernels: Tensor, side: int) -> Tensor:
        kernels = kernels.repeat_interleave(self.group, -1) + self.base_kernel[side]
        shifted_rows = [pad(rows, (0, 0, offset, 0))[:, : rows.shape[1]] for offset in range(self.reach)]
        return (kernels * torch.stack(shifted_rows, 2)).sum(2)


class ConvolvedLayer(Qwen3DecoderLayer):
    """A decoder layer with convolutions around its attention and its MLP (DFlash2)."""

    def __init__(self, config: BlockConfig, index: int) -> None:
        super().__init__(config.layer, index)
        sizes = config.layer.hidden_size, config.convolution, config.group
        self.block = config.block
        self.attention_conv = GroupedConvolution(*sizes)
        self.mlp_conv = GroupedConvolution(*sizes)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """As in the base class; the rows of several blocks follow each other."""
        x, kernels = self.attention_conv.before(self._blocks(self.input_layernorm(hidden_states)))
        attended, _ = self.self_attn(x.reshape(hidden_states.shape), attention_mask=None, **kwargs)
        hidden_states = hidden_states + self.attention_conv.after(self._blocks(attended), kernels).view_as(attended)
        x, kernels = self.mlp_conv.before(self._blocks(self.post_attention_layernorm(hidden_states)))
        return hidden_states + self.mlp_conv.after(self.mlp(x), kernels).reshape(hidden_states.shape)

    def _blocks(self, rows: Tensor) -> Tensor:
        return rows.reshape(-1, self.block, rows.shape[-1])


def _layer(config: BlockConfig, index: int) -> Qwen3DecoderLayer:
    layer = ConvolvedLayer(config, index) if config.convolution else Qwen3DecoderLayer(config.layer, index)
    if config.sinks:
        layer.self_attn.attention_sink_bias = nn.Parameter(torch.empty(config.layer.num_attention_heads))
    return layer


def _transition(config: BlockConfig) -> Transition | CandidateSelector | None:
    if config.transition is None:
        return None
    width = config.layer.hidden_size
    if config.transition == SELECTOR:
        return CandidateSelector(config.vocab, config.rank, width, config.candidates)
    return TRANSITIONS[config.transition](config.vocab, config.draft_vocab, config.rank, width)
