"""Multi-token-prediction (MTP) layers, which come with the target's own checkpoint, for `HeadDrafter`.

An MTP layer is a decoder layer of the target's class. In place of a token's embedding it reads a projection of that
embedding and of a hidden state, and its output after its own norm goes to the target's head: h = norm(block(eh_proj(
[enorm(embedding); hnorm(state)]))) (DeepSeek-V3, arXiv 2412.19437, section 2.2). So it is run as what it is: a language
model of one layer whose embedding reads a state.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.head import HeadDrafter
from drafttree.drafters.heads import last_layer, own_bytes, zero_hidden
from drafttree.models import Segment, TargetModel, TreeCache
from drafttree.models.segment import join, split
from drafttree.models.validation import select_unrecorded


class MtpEmbedding(nn.Module):
    """What an MTP layer reads in place of the embeddings of tokens.

    Args:
        embed_tokens: the target's embedding.
        enorm: norm of embeddings.
        hnorm: norm of states.
        eh_proj: projects both, side by side, to the width of the layer.
        states_first: whether states stand before embeddings in the pair.

    Attributes:
        states: `[1, rows, hidden]` states that the next pass reads; zeros stand for None.
    """

    def __init__(
        self, embed_tokens: nn.Module, enorm: nn.Module, hnorm: nn.Module, eh_proj: nn.Linear, states_first: bool
    ) -> None:
        super().__init__()
        self.embed_tokens, self.enorm, self.hnorm, self.eh_proj = embed_tokens, enorm, hnorm, eh_proj
        self.states_first = states_first
        self.states: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """A weight, of the layer's dtype and device."""
        return self.eh_proj.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids `[1, rows]` to what the layer reads, `[1, rows, hidden]`."""
        embedded = self.embed_tokens(tokens)
        states = torch.zeros_like(embedded) if self.states is None else self.states
        pair = self.enorm(embedded), self.hnorm(states)
        return self.eh_proj(torch.cat(pair[::-1] if self.states_first else pair, -1))


class MtpLayer:
    """Runs an MTP layer; see `drafttree.drafters.head.Head`.

    Args:
        module: a language model of the target's class: its embedding an `MtpEmbedding`, its head the target's.

    Attributes:
        model: the module in its fastest backend.
    """

    def __init__(self, module: PreTrainedModel) -> None:
        self.model = TargetModel(module, select_unrecorded)
        self._embedding: Any = module.get_input_embeddings()
        self._output = (last_layer(module),)

    def new_cache(self, capacity: int) -> TreeCache:
        return self.model.new_cache(capacity)

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        return hidden_states[0]

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[Tensor, Tensor]:
        if len(segments) > 1 and not self.model.shares_passes:
            read = split(states, [segment.nodes for segment in segments])
            logits, outputs = zip(*(self([own], part) for own, part in zip(segments, read, strict=True)), strict=True)
            return join(logits, 0), join(outputs)
        self._embedding.states = states
        try:
            outputs = self.model.forward(segments, hidden_layers=self._output)
        finally:
            self._embedding.states = None
        return join([output.logits[0] for output in outputs], 0), join([output.hidden[0] for output in outputs])


def mtp_drafter(modules: Sequence[PreTrainedModel], target: PreTrainedModel) -> HeadDrafter:
    """The drafter of MTP layers, as `MtpLayer` takes them, for the model they belong to."""
    layers, nbytes = [MtpLayer(module) for module in modules], own_bytes(nn.ModuleList(modules), target)
    vocab = layers[0].model.vocab_size
    return HeadDrafter("mtp", layers, (last_layer(target),), (zero_hidden(target),), vocab, nbytes)
