"""Attention of fused layers in a packed pass: the nodes of every segment to the rows of its own KV cache."""

from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.pass_attention import RowAttention


class PackedRows(NamedTuple):
    """The rows of one layer.

    Attributes:
        stored: keys and values `[1, key heads, rows, width]` by segment.
        new_keys: those of the nodes alone, each `[nodes, key heads, width]`, to be written.
        new_values: likewise.
    """

    stored: tuple[tuple[Tensor, Tensor], ...]
    new_keys: tuple[Tensor, ...]
    new_values: tuple[Tensor, ...]


class PackedAttention(NamedTuple):
    """Attention of segments, one behind the other. See `drafttree.models.pass_attention.PassAttention`.

    Attributes:
        parts: of every segment.
    """

    parts: list[RowAttention]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: PackedRows, scale: float) -> Tensor:
        sizes = [part.nodes for part in self.parts]
        new = *rows.new_keys, *rows.new_values
        # one call for all segments: most have a single row
        torch._foreach_copy_(new, (*key.split(sizes), *value.split(sizes)))  # pyright: ignore[reportPrivateImportUsage]
        queries = query.unflatten(1, (key.shape[1], -1)).split(sizes)
        own = zip(self.parts, queries, rows.stored, strict=True)
        return torch.cat([part.read(nodes, *stored, scale) for part, nodes, stored in own]).flatten(1)
