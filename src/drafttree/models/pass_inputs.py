"""The inputs of a pass through fused layers, which may be in memory that stays where it is."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.exact_attention import QueryBlock
from drafttree.models.kv_cache import TreeCache
from drafttree.models.pass_attention import RowAttention
from drafttree.models.span import EVERYTHING, Span
from drafttree.models.tree_attention import TreePlan


class PassInputs(NamedTuple):
    """The inputs of one pass.

    Attributes:
        tokens: `[batch, nodes]` token ids.
        positions: `[batch, nodes]`.
        new_rows: which rows of the KV cache are the nodes'.
        masks: additive `[batch, 1, groups * nodes, rows]` by how far back layers attend, None where they see every row.
        rows: per layer keys and values `[batch, heads, rows, width]`.
        hidden: `[batch, nodes, hidden]`, the states an EAGLE-3 head reads; empty for a model.
        blocks: how attention is split where texts must not depend on trees, else None.
    """

    tokens: Tensor
    positions: Tensor
    new_rows: slice | Tensor
    masks: dict[Span, Tensor | None]
    rows: list[tuple[Tensor, Tensor]]
    hidden: Tensor
    blocks: list[QueryBlock] | None = None

    @classmethod
    def of(
        cls,
        cache: TreeCache,
        groups: int,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        hidden: Tensor,
        spans: Iterable[Span] = (EVERYTHING,),
    ) -> "PassInputs":
        """Inputs on the rows the cache has; arguments as for `Backend.forward`.

        Args:
            groups: query heads that share a key head.
            hidden: as above; of the model's dtype and device even if it is empty.
            spans: how far back layers attend.
        """
        plan = TreePlan(cache, positions, visible, hidden.dtype)
        masks = {span: plan.mask(groups, span) for span in spans}
        new_rows = slice(cache.get_seq_length(), None)
        rows = cache.rows(hidden, tokens.shape[1])
        return cls(tokens, positions, new_rows, masks, rows, hidden, plan.blocks)

    def attention(self, span: Span = EVERYTHING) -> RowAttention:
        """Attention of the layers that attend so far back."""
        batch, nodes = self.tokens.shape
        return RowAttention(batch, nodes, self.masks[span], self.new_rows, span, self.blocks)


class StaticInputs:
    """Memory in which a recorded pass finds its inputs, and what it needs to know of the KV cache.

    Args:
        like: a weight, of the dtype and device of a pass.
        hidden: width of the states a head reads.
        nodes: largest number of nodes.
        drafted: largest number of drafted rows.

    Attributes:
        tokens: `[1, nodes]` token ids; padding nodes keep those of an earlier pass.
        positions: `[1, nodes]`, likewise.
        visible: bool `[nodes, drafted]`: which drafted rows each token attends to.
        bounds: the numbers of committed rows, of rows before the pass, and of rows after it.
        hidden: `[1, nodes, hidden]`; zero for padding nodes, since an earlier pass may have left NaN.
    """

    def __init__(self, like: Tensor, hidden: int, nodes: int, drafted: int) -> None:
        self.tokens = torch.zeros(1, nodes, dtype=torch.long, device=like.device)
        self.positions = torch.zeros_like(self.tokens)
        self.visible = torch.zeros(nodes, drafted, dtype=torch.bool, device=like.device)
        self.bounds = torch.zeros(3, dtype=torch.long, device=like.device)
        self.hidden = torch.zeros(1, nodes, hidden, dtype=like.dtype, device=like.device)

    def store(
        self, cache: TreeCache, tokens: Tensor, positions: Tensor, visible: Tensor, hidden: Tensor | None
    ) -> None:
        """Store the inputs of a pass; arguments as for `Backend.forward`."""
        nodes, drafted = visible.shape[1:]
        self.tokens[:, :nodes] = tokens
        self.positions[:, :nodes] = positions
        self.visible[:nodes, :drafted] = visible[0]
        if hidden is not None:
            self.hidden[:, :nodes] = hidden
            self.hidden[:, nodes:].zero_()
        length, start = cache.length, cache.get_seq_length()
        for place, bound in enumerate((length, start, start + nodes)):
            self.bounds[place].fill_(bound)

    def of_bucket(self, bucket: int, groups: int, rows: list[tuple[Tensor, Tensor]]) -> PassInputs:
        """The inputs of a pass over a bucket of nodes, computed on the device from what is stored.

        Padding nodes are masked from all others and attend to the prefix and to themselves, to avoid NaN.
        """
        length, start, end = self.bounds
        new_rows = start + torch.arange(bucket, device=start.device)
        columns = torch.arange(rows[0][0].shape[-2], device=start.device)
        drafted = columns - length
        tree = self.visible[:bucket].index_select(1, drafted.clamp(0, self.visible.shape[1] - 1)) & (columns < end)
        seen = (drafted < 0) | tree | (columns == new_rows[:, None])
        mask = torch.zeros(seen.shape, dtype=self.hidden.dtype, device=start.device).masked_fill_(~seen, -torch.inf)
        mask = mask.repeat(groups, 1)[None, None]
        tokens, positions, hidden = (each[:, :bucket] for each in (self.tokens, self.positions, self.hidden))
        return PassInputs(tokens, positions, new_rows, {EVERYTHING: mask}, rows, hidden)
