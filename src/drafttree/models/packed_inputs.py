"""The inputs of a pass through fused layers over the segments of several requests."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.packed_attention import PackedAttention, PackedRows
from drafttree.models.paged_inputs import PagedInputs
from drafttree.models.pass_inputs import PassInputs
from drafttree.models.segment import Segment
from drafttree.models.span import EVERYTHING, Span


class PackedInputs(NamedTuple):
    """The inputs of a packed pass; layers see one sequence of all nodes.

    Attributes:
        tokens: `[1, nodes]` token ids.
        positions: `[1, nodes]`.
        hidden: `[1, nodes, hidden]`, the states an EAGLE-3 head reads; empty for a model.
        rows: per layer.
        parts: the inputs of every segment.
    """

    tokens: Tensor
    positions: Tensor
    hidden: Tensor
    rows: list[PackedRows]
    parts: list[PassInputs]

    def attention(self, span: Span = EVERYTHING) -> PackedAttention:
        """Attention of the layers that attend so far back."""
        return PackedAttention([part.attention(span) for part in self.parts])


LayerInputs = PassInputs | PackedInputs | PagedInputs
"""The inputs of a pass through fused layers, over one request or several."""


def pack_inputs(
    segments: Sequence[Segment], groups: int, hidden: Tensor, spans: Iterable[Span] = (EVERYTHING,)
) -> PassInputs | PackedInputs:
    """Inputs of segments on the rows that their caches have; other arguments as for `PassInputs.of`."""
    for segment in segments:  # making room for one may move the rows of all
        segment.cache.reserve(hidden, segment.nodes)
    parts = [PassInputs.of(segment.cache, groups, *segment[1:4], hidden, spans) for segment in segments]
    if len(parts) == 1:
        return parts[0]
    tokens, positions = torch.cat([part.tokens for part in parts], 1), torch.cat([part.positions for part in parts], 1)
    stored = zip(*(part.rows for part in parts), strict=True)
    new = zip(*(segment.cache.new_rows(segment.nodes) for segment in segments), strict=True)
    rows = [PackedRows(every, *zip(*own, strict=True)) for every, own in zip(stored, new, strict=True)]
    return PackedInputs(tokens, positions, hidden, rows, parts)
