"""The embedding of a multi-token-prediction (MTP) layer, which is run as a language model of one layer."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.models.segment import PassTensors, Segment


class MtpEmbedding(nn.Module):
    """Makes the input of an MTP layer from the embeddings of tokens and the target's states.

    Args:
        embed_tokens: the target's embedding.
        enorm: norm of embeddings.
        hnorm: norm of states.
        eh_proj: projects the concatenation of both to the width of the layer.
        states_first: whether states come before embeddings in the concatenation.

    Attributes:
        states: `[1, rows, hidden]` states that the next pass reads. If None, the embeddings are read in their place. So
            passes over tokens alone, in which backends are compared, depend on every weight.
    """

    def __init__(
        self, embed_tokens: nn.Module, enorm: nn.Module, hnorm: nn.Module, eh_proj: nn.Linear, states_first: bool
    ) -> None:
        super().__init__()
        self.embed_tokens = embed_tokens
        self.enorm = enorm
        self.hnorm = hnorm
        self.eh_proj = eh_proj
        self.states_first = states_first
        self.states: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """A weight with the layer's dtype, on its device."""
        return self.eh_proj.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids `[1, rows]` to the layer's input `[1, rows, hidden]`."""
        embeddings = self.embed_tokens(tokens)
        states = embeddings if self.states is None else self.states
        normed_inputs = self.enorm(embeddings), self.hnorm(states)
        return self.eh_proj(torch.cat(normed_inputs[::-1] if self.states_first else normed_inputs, -1))

    def read_states(self, segments: Sequence[Segment]) -> Tensor:
        """The states that a pass over these segments reads."""
        if self.states is None:
            return self.embed_tokens(PassTensors.of(segments, self.weight.device).tokens)
        return self.states


def mtp_embedding_of(module: Any) -> MtpEmbedding | None:
    """The embedding of an MTP layer that is run as a language model; None for other modules."""
    embedding = module.get_input_embeddings() if isinstance(module, PreTrainedModel) else None
    return embedding if isinstance(embedding, MtpEmbedding) else None
