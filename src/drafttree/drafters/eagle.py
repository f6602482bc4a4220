"""Drafts with EAGLE-1 and EAGLE-2 heads: a decoder layer that predicts the target's next hidden state.

The head reads the state that the target's output layer reads, and its own outputs below drafted tokens are states of
the same kind, from which that layer makes logits. EAGLE (Li et al. 2024, arXiv 2401.15077), section 3.1; EAGLE-2
(arXiv 2406.16858) has the same heads and other trees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.eagle3 import Eagle3Drafter, decoder_layers
from drafttree.models import CacheLayout, Segment, TreeCache
from drafttree.models.module.module_inputs import ModuleInputs, as_cache


@dataclass(frozen=True)
class EagleConfig:
    """Sizes of a head.

    Attributes:
        layer: config of its decoder layers, and sizes of the target's hidden state and vocabulary.
        biased: the layer that joins embedding and hidden state has a bias.
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


class EagleHead(nn.Module):
    """The head's weights and forward pass over rows of a tree; see `drafttree.drafters.eagle3.Eagle3Backend`.

    Attributes:
        layout: the layout of its KV cache.
    """

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.hidden)
        self.fc = nn.Linear(2 * config.hidden, config.hidden, bias=config.biased)
        self.layers = decoder_layers(config.layer)
        first: Any = self.layers[0]
        first.input_layernorm = nn.Identity()
        self.layout = CacheLayout.of_config(config.layer)
        self.lm_head = nn.Linear(config.hidden, config.vocab, bias=False)
        self.rotary = LlamaRotaryEmbedding(config.layer)  # pyright: ignore[reportArgumentType]

    def new_cache(self, capacity: int) -> TreeCache:
        """Return an empty KV cache for one request of about `capacity` tokens."""
        return TreeCache(self.layout, capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """The target's hidden state `[batch, rows, hidden]`, which the head reads as it is."""
        return hidden_states[0]

    def forward(self, segments: Sequence[Segment], hidden: Tensor) -> Tensor:
        """Compute the outputs `[1, rows, hidden]` of the new rows of one request or several, behind each other.

        Their keys and values join the drafted rows of each KV cache.

        Args:
            segments: token ids, and positions of the hidden states, one less than their tokens'.
            hidden: `[1, rows, hidden]` hidden state of the token before each token, of all segments.
        """
        tokens, positions, cache, plan = ModuleInputs.of(segments, hidden.dtype)
        rotary = self.rotary(hidden, positions)
        output = self.fc(torch.cat((self.embed_tokens(tokens), hidden), -1))
        for layer in self.layers:
            output = layer(
                output, position_embeddings=rotary, attention_mask=None, tree_plan=plan, **as_cache(layer, cache)
            )
        for segment in segments:
            segment.cache.grow(segment.positions)
        return output

    def next_hidden(self, output: Tensor) -> Tensor:
        """Return the hidden states that the children of drafted tokens read: the tokens' outputs."""
        return output

    def draft_logits(self, output: Tensor) -> Tensor:
        """Logits `[batch, rows, vocab]` of outputs, without another norm."""
        return self.lm_head(output)

    def in_target_vocab(self, logits: Tensor) -> Tensor:
        """The logits as they are: the head proposes every token of the target."""
        return logits


class EagleDrafter(Eagle3Drafter):
    """Drafts with an EAGLE-1 or EAGLE-2 head, by the sessions of EAGLE-3.

    Args:
        head: the head in the target's dtype and on its device.
        last_layer: index of the target's hidden state after its final norm.
        nbytes: bytes of the weights that are not shared with the target.
    """

    def __init__(self, head: EagleHead, last_layer: int, nbytes: int) -> None:
        same_part: Any = head
        super().__init__(same_part, (last_layer,), nbytes)
