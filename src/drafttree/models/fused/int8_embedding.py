"""An embedding whose weight of eight bits is the output projection's."""

from typing import Any

import torch
from torch import Tensor, nn

from drafttree.models.fused.int8_linear import Int8Linear

SCALED = "ScaledWordEmbedding"
"""What the names of transformers' classes end with whose embeddings have a factor (Gemma)."""


class Int8Embedding(nn.Module):
    """An embedding whose rows are those of an output projection's weight, times what 1 stands for.

    Args:
        head: the output projection.
        embedding: the embedding in whose place it stands, which had the projection's weight before.

    Attributes:
        quantized: the projection's weight, int8 `[vocab, hidden]`.
        embed_scale: the factor of the embedding, in its dtype.
    """

    scale: Tensor

    def __init__(self, head: Int8Linear, embedding: Any) -> None:
        super().__init__()
        self.training = embedding.training
        self.num_embeddings, self.embedding_dim = head.out_features, head.in_features
        self.quantized = head.quantized
        self.register_buffer("scale", head.scale, persistent=False)
        self.dtype = embedding.weight.dtype
        self.embed_scale = scale_of(embedding)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def forward(self, tokens: Tensor) -> Tensor:
        rows = (self.quantized[tokens] * self.scale[tokens][..., None]).to(self.dtype)
        return rows if self.embed_scale == 1 else rows * self.embed_scale


def only_looks_up(embedding: Any) -> bool:
    """Whether an embedding does nothing but look up rows, and multiply them with a factor perhaps."""
    kind = type(embedding)
    return kind in (nn.Embedding, Int8Embedding) or kind.__name__.endswith(SCALED)


def dtype_of(embedding: Any) -> torch.dtype:
    """The dtype of the rows that an embedding looks up."""
    return embedding.dtype if isinstance(embedding, Int8Embedding) else embedding.weight.dtype


def scale_of(embedding: Any) -> float:
    """What an embedding multiplies its rows with; Gemma rounds it to the dtype of the weights."""
    return torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(dtype_of(embedding)).item()
