"""An embedding with a quantised weight, which an output projection may share."""

from typing import Any

import torch
from torch import Tensor, nn

from drafttree.models.quantization.quantized_linear import QuantizedLinear, dequantized_rows

SCALED = "ScaledWordEmbedding"
"""Class names of transformers' embeddings with a factor (Gemma) end in this."""


class QuantizedEmbedding(nn.Module):
    """An embedding whose rows are the rows of a quantised weight.

    Args:
        weight: the layer that has the weight, such as an output projection.
        embedding: the embedding that it replaces.

    Attributes:
        quantized: the weight.
        scale: scale of the layer, None if it has none.
        blocks: name of the weight's blocks, None if it has none.
        embed_scale: factor of the embeddings, rounded to their dtype.
    """

    scale: Tensor | None

    def __init__(self, weight: QuantizedLinear, embedding: Any) -> None:
        super().__init__()
        self.training = embedding.training
        self.num_embeddings = weight.out_features
        self.embedding_dim = weight.in_features
        self.quantized = weight.quantized
        self.register_buffer("scale", weight.scale, persistent=False)
        self.dtype = embedding.weight.dtype
        self.embed_scale = scale_of(embedding)
        self.blocks = weight.blocks

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def dequantized(self) -> Tensor:
        """The rows of all tokens, `[vocab, hidden]` in float32, not multiplied by the factor."""
        return dequantized_rows(self.quantized.detach(), self.scale, self.blocks)

    def forward(self, tokens: Tensor) -> Tensor:
        ids = tokens.flatten()
        return self.scaled(self.quantized[ids], ids).unflatten(0, tokens.shape)

    def scaled(self, quantized: Tensor, ids: Tensor) -> Tensor:
        """The embeddings `[tokens, hidden]` of token ids, given their rows of `quantized`."""
        scale = None if self.scale is None else self.scale[ids]
        rows = dequantized_rows(quantized, scale, self.blocks).to(self.dtype)
        return rows if self.embed_scale == 1 else rows * self.embed_scale


def only_looks_up(embedding: Any) -> bool:
    """Whether an embedding only looks up rows and at most multiplies them by a factor."""
    embedding_class = type(embedding)
    return embedding_class in (nn.Embedding, QuantizedEmbedding) or embedding_class.__name__.endswith(SCALED)


def table_of(embedding: Any) -> Tensor:
    """The weight of an embedding, quantised or not."""
    return embedding.quantized if isinstance(embedding, QuantizedEmbedding) else embedding.weight


def dtype_of(embedding: Any) -> torch.dtype:
    """The dtype of the rows that an embedding looks up."""
    return embedding.dtype if isinstance(embedding, QuantizedEmbedding) else embedding.weight.dtype


def scale_of(embedding: Any) -> float:
    """The factor of an embedding's rows, rounded to their dtype as Gemma does."""
    return torch.as_tensor(getattr(embedding, "embed_scale", 1.0)).to(dtype_of(embedding)).item()
