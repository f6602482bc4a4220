"""Attention of fused layers in a packed pass: the nodes of every segment to the rows of its own KV cache."""

from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.pass_attention import RowAttention


class PackedAttention(NamedTuple):
    """Attention of segments, one behind the other. See `drafttree.models.pass_attention.PassAttention`.

    Attributes:
        parts: of every segment.
    """

    parts: list[RowAttention]

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, rows: list[tuple[Tensor, Tensor]], scale: float
    ) -> Tensor:
        """As for one segment; `rows` are the keys and values of a layer by segment."""
        sizes = [part.nodes for part in self.parts]
        new = zip(query.split(sizes), key.split(sizes), value.split(sizes), strict=True)
        return torch.cat([part.attend(*own, at, scale) for part, own, at in zip(self.parts, new, rows, strict=True)])
