"""The inputs of a pass through fused layers over one request or several."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from drafttree.models.attention.pass_attention import LayerRows, PassAttention, RowAttention, Visibility
from drafttree.models.attention.span import Span
from drafttree.models.attention.tree_attention import TreePlan
from drafttree.models.segment import Segment, join


class PassInputs(NamedTuple):
    """The inputs of one pass; layers see one sequence of all nodes.

    Attributes:
        tokens: `[1, nodes]` token ids.
        positions: `[1, nodes]`.
        hidden: `[1, nodes, hidden]`, the states an EAGLE-3 head reads; empty for a model.
        rows: per layer, as its attention wants them.
        attention: makes the attention of the layers that attend so far back.
    """

    tokens: Tensor
    positions: Tensor
    hidden: Tensor
    rows: Sequence[Any]
    attention: Callable[[Span], PassAttention]

    @classmethod
    def of(cls, segments: Sequence[Segment], groups: int, hidden: Tensor) -> "PassInputs":
        """The inputs of segments on the rows that their caches have.

        Args:
            groups: query heads that share a key head.
            hidden: as above; of the model's dtype and device even if it is empty.
        """
        for segment in segments:  # making room for one may move the rows of all
            segment.cache.reserve(hidden, segment.nodes)
        sizes = [segment.nodes for segment in segments]
        plans = [TreePlan(each.cache, each.positions, each.visible, hidden.dtype) for each in segments]

        def attention(span: Span) -> RowAttention:
            return RowAttention(sizes, [Visibility(plan.mask(groups, span), span, plan.blocks) for plan in plans])

        tokens, positions = join([each.tokens for each in segments]), join([each.positions for each in segments])
        return cls(tokens, positions, hidden, _rows(segments, sizes), attention)


def _rows(segments: Sequence[Segment], sizes: Sequence[int]) -> list[LayerRows]:
    """The rows of every layer."""
    layers = []
    for own in zip(*(each.cache.pass_rows(size) for each, size in zip(segments, sizes, strict=True)), strict=True):
        keys, values, new_keys, new_values = zip(*own, strict=True)
        layers.append(LayerRows([*zip(keys, values, strict=True)], [*new_keys, *new_values]))
    return layers
