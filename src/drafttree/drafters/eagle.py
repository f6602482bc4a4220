"""The weights and forward pass of EAGLE heads, for `drafttree.drafters.head.HeadDrafter`.

EAGLE-1 (Li et al. 2024, arXiv 2401.15077, section 3.1) is a decoder layer that predicts the target's next hidden state.
The target's output layer turns it into logits. EAGLE-2 (arXiv 2406.16858) has the same heads and other trees. EAGLE-3
(Li et al. 2025, section 3.1) is a decoder layer that reads fused hidden states of three layers of the target.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.head import Head, HeadDrafter, split_by_segment
from drafttree.models import CacheLayout, Segment, TreeCache
from drafttree.models.attention.tree_attention import NAME
from drafttree.models.families import Architecture, Block, Entry, llama_block, rotaries_of
from drafttree.models.module.module_inputs import ModuleInputs, as_cache
from drafttree.models.segment import BEFORE_NORM, join


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of an EAGLE-1 or EAGLE-2 head.

    Attributes:
        layer: config of its decoder layers, and sizes of the target's hidden state and vocabulary.
        biased: whether the layer that joins embedding and hidden state has a bias.
    """

    layer: LlamaConfig | Qwen3Config
    biased: bool
    states: ClassVar[int] = 1

    @property
    def vocab(self) -> int:
        """Size of the target's vocabulary."""
        return self.layer.vocab_size

    @property
    def hidden(self) -> int:
        """Width of the head."""
        return self.layer.hidden_size

    target_hidden = hidden


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes and variants of an EAGLE-3 head.

    Attributes:
        layer: config of its decoder layers: width, attention heads and their windows, MLP, norms, rotary embedding.
        vocab: size of the target's vocabulary.
        draft_vocab: number of tokens it can propose.
        target_hidden: width of the target's hidden states.
        states: number of the target's layers whose hidden states it fuses.
        normed_residual: whether the first layer's residual is the normed hidden state ("norm_before_residual").
        normed_input: whether the concatenated hidden states are normed before fusion ("norm_before_fc").
        normed_states: whether each hidden state is normed by itself before concatenation ("fc_norm").
        normed_output: whether a node's children read its output after the final norm ("norm_output").
        normed_logits: whether logits are computed from outputs after the final norm.
    """

    layer: LlamaConfig | Qwen3Config
    vocab: int
    draft_vocab: int
    target_hidden: int
    states: int = 3
    normed_residual: bool = False
    normed_input: bool = False
    normed_states: bool = False
    normed_output: bool = False
    normed_logits: bool = True

    @property
    def hidden(self) -> int:
        """Width of the head."""
        return self.layer.hidden_size


class EagleHead(nn.Module):
    """An EAGLE-1 or EAGLE-2 head; see `drafttree.drafters.head.Head`.

    Attributes:
        layout: the layout of its KV cache.
        target_ids: `[draft_vocab]` the target's id of every draft id, None if the two vocabularies are the same.
    """

    kind = "eagle"
    target_ids: Tensor | None

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=config.biased)
        self.layers = decoder_layers(config.layer)
        first_layer: Any = self.layers[0]
        first_layer.input_layernorm = nn.Identity()
        self._add_ends(config, config.vocab)

    def _add_ends(self, config: Any, draft_vocab: int) -> None:
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.layout = CacheLayout.of_config(config.layer)
        self.lm_head = nn.Linear(config.hidden, draft_vocab, bias=False)
        self.rotary = LlamaRotaryEmbedding(config.layer)
        self.register_buffer("target_ids", None, persistent=False)

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self.layout, capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        return hidden_states[0]

    def forward(self, segments: Sequence[Segment], states: Tensor) -> tuple[Tensor, Tensor]:
        output = self.run_layers(ModuleInputs.of(segments, states.dtype, states.device), states)
        for segment in segments:
            segment.cache.grow(segment.positions)
        wanted_outputs = list[Tensor]()
        for segment, segment_outputs in zip(segments, split_by_segment(output, segments), strict=True):
            wanted_outputs.append(segment.wanted_of(segment_outputs))
        logits = self.draft_logits(join(wanted_outputs))[0]
        return over_vocabulary(self, logits), self.next_hidden(output)

    def run_layers(self, inputs: ModuleInputs, hidden_states: Tensor) -> Tensor:
        """Run the layers; the plan of the inputs says what each row attends to."""
        layer_kwargs = self._layer_kwargs(inputs, hidden_states)
        output = self.fc(torch.cat((self.embed_tokens(inputs.tokens), hidden_states), -1))
        for layer in self.layers:
            output = layer(output, **layer_kwargs)
        return output

    def _layer_kwargs(self, inputs: ModuleInputs, hidden_states: Tensor) -> dict[str, Any]:
        """The keyword arguments of all decoder layers."""
        rotary = self.rotary(hidden_states, inputs.positions)
        layer_kwargs = {"position_embeddings": rotary, "tree_plan": inputs.plan, "attention_mask": None}
        return layer_kwargs | as_cache(self.layers[0], inputs.cache)

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its weights."""
        return self.fc.weight.dtype

    @property
    def output_layer(self) -> int:
        """The layer whose output a node's children read, counted as in `Backend.forward`."""
        return BEFORE_NORM

    def architecture(self) -> Architecture:
        """The head without `fuse`, as backends need it."""
        return self._architecture(Entry(token_norm=None, state_norm=None, projection=self.fc), None)

    def _architecture(self, entry: Entry, norm: nn.Module | None) -> Architecture:
        blocks: list[Block] = [llama_block(layer, self.config.layer) for layer in self.layers]
        return Architecture(
            embedding=self.embed_tokens,
            blocks=blocks,
            owners=range(len(blocks)),
            rotaries=rotaries_of(blocks, self.rotary),
            norm=norm,
            head=self.lm_head,
            layout=self.layout,
            entry=entry,
        )

    def next_hidden(self, output: Tensor) -> Tensor:
        """The states that the children of nodes read, given the outputs at these nodes."""
        return output

    def draft_logits(self, output: Tensor) -> Tensor:
        """Logits `[1, rows, draft_vocab]` of outputs. Only EAGLE-3 has a norm before the output layer."""
        return self.lm_head(output)


class Eagle3Head(EagleHead):
    """An EAGLE-3 head, whose first layer projects (embedding, hidden state) pairs, twice as wide."""

    kind = "eagle3"

    def __init__(self, config: Eagle3Config) -> None:
        nn.Module.__init__(self)
        hidden_size = config.hidden
        eps = config.layer.rms_norm_eps
        fused_size = config.states * config.target_hidden
        self.fc_norm = nn.ModuleList(
            LlamaRMSNorm(config.target_hidden, eps) for _ in range(config.states * config.normed_states)
        )
        self.input_norm = LlamaRMSNorm(fused_size, eps) if config.normed_input else nn.Identity()
        self.fc = nn.Linear(fused_size, hidden_size, bias=False)
        self.layers = decoder_layers(config.layer)
        first_layer: Any = self.layers[0]
        first_layer.hidden_norm = LlamaRMSNorm(hidden_size, eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            projection = getattr(first_layer.self_attn, name)
            wide_projection = nn.Linear(2 * hidden_size, projection.out_features, bias=projection.bias is not None)
            setattr(first_layer.self_attn, name, wide_projection)
        self.norm = LlamaRMSNorm(hidden_size, eps)
        self._add_ends(config, config.draft_vocab)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        if self.fc_norm:
            hidden_states = tuple(norm(state) for norm, state in zip(self.fc_norm, hidden_states, strict=True))
        return self.fc(self.input_norm(torch.cat(hidden_states, -1)))

    def run_layers(self, inputs: ModuleInputs, hidden_states: Tensor) -> Tensor:
        first_layer: Any = self.layers[0]
        layer_kwargs = self._layer_kwargs(inputs, hidden_states)
        normed = first_layer.hidden_norm(hidden_states)
        attention_input = torch.cat((first_layer.input_layernorm(self.embed_tokens(inputs.tokens)), normed), -1)
        residual = normed if self.config.normed_residual else hidden_states
        output = residual + first_layer.self_attn(attention_input, **layer_kwargs)[0]
        output = output + first_layer.mlp(first_layer.post_attention_layernorm(output))
        for layer in self.layers[1:]:
            output = layer(output, **layer_kwargs)
        return output

    @property
    def output_layer(self) -> int:
        return len(self.layers) if self.config.normed_output else BEFORE_NORM

    def architecture(self) -> Architecture:
        config = self.config
        if config.normed_output and not config.normed_logits:
            raise AttributeError("a norm of hidden states that is not also applied to logits is not known")
        first_layer: Any = self.layers[0]
        norms = {"token_norm": first_layer.input_layernorm, "state_norm": first_layer.hidden_norm}
        entry = Entry(**norms, projection=None, normed_residual=config.normed_residual)
        architecture = self._architecture(entry, self.norm if config.normed_logits else None)
        # attention reads the pair of embedding and state, not the output of a norm
        return replace(
            architecture, blocks=[replace(architecture.blocks[0], before_attention=None), *architecture.blocks[1:]]
        )

    def next_hidden(self, output: Tensor) -> Tensor:
        return self.norm(output) if self.config.normed_output else output

    def draft_logits(self, output: Tensor) -> Tensor:
        return self.lm_head(self.norm(output) if self.config.normed_logits else output)


def over_vocabulary(head: EagleHead, logits: Tensor) -> Tensor:
    """Spread logits `[rows, draft_vocab]` over the target's vocabulary; tokens that cannot be drafted get -inf."""
    if head.target_ids is None:
        return logits
    full = logits.new_full((len(logits), head.config.vocab), -torch.inf)
    return full.index_copy_(-1, head.target_ids, logits)


def eagle_drafter(
    head: EagleHead,
    hidden_layers: tuple[int, ...],
    nbytes: int,
    select: Callable[[Any], Head] = lambda head: head,
) -> HeadDrafter:
    """Make the drafter of an EAGLE head in the target's dtype and on its device; arguments as of `HeadDrafter`."""
    zero = head.fc.weight.new_zeros(1, 1, head.config.target_hidden)
    zeros = (zero,) * head.config.states
    return HeadDrafter(head.kind, [head], hidden_layers, zeros, head.config.vocab, nbytes, select)


def decoder_layers(config: LlamaConfig | Qwen3Config) -> nn.ModuleList:
    """Build transformers' decoder layers, which attend to trees."""
    config._attn_implementation = NAME
    make = Qwen3DecoderLayer if isinstance(config, Qwen3Config) else LlamaDecoderLayer
    return nn.ModuleList(make(config, index) for index in range(config.num_hidden_layers))  # pyright: ignore[reportArgumentType]
