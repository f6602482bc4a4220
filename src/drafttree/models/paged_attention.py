"""Attention of a packed pass whose requests have their rows in one allocation.

The committed rows of all requests are attended to in one call and the trees in another, whose results are joined by
their log-sum-exps.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.varlen_attention import Prefixes, VarlenAttention, attend_densely


class PagedAttention(NamedTuple):
    """Attention to the pages of several requests. See `drafttree.models.pass_attention.PassAttention`.

    Attributes:
        attend_to_prefixes: attends to the committed rows.
        new_rows: `[nodes]` where the nodes' rows are to be written.
        tree_rows: `[drafted]` the drafted rows of all requests, the new ones included.
        visible: bool `[nodes * groups, drafted]`: which of them a query attends to.
        prefixes: the committed rows.
        has_prefix: bool `[nodes * groups]`: whether the request of a query has any.
    """

    attend_to_prefixes: VarlenAttention
    new_rows: Tensor
    tree_rows: Tensor
    visible: Tensor
    prefixes: Prefixes
    has_prefix: Tensor

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`; `rows` are all keys and values `[key heads, rows, width]` of a layer.

        Query heads that share a key head are stacked as queries: the rows are read once for all of them, and torch's
        kernel is not asked for groups, for single queries of which it orders the log-sum-exps in another way.
        """
        for stored, new in zip(rows, (key, value), strict=True):
            stored.index_copy_(1, self.new_rows, new.transpose(0, 1))
        grouped = query.unflatten(1, (key.shape[1], -1)).transpose(1, 2)
        stacked = grouped.flatten(0, 1)
        keys, values = (stored.index_select(1, self.tree_rows) for stored in rows)
        tree, tree_size = attend_densely(stacked, keys, values, self.visible, scale)
        prefix, prefix_size = self.attend_to_prefixes(stacked, *rows, self.prefixes, scale)
        share = torch.sigmoid(prefix_size - tree_size).masked_fill(~self.has_prefix, 0)
        out = tree.lerp(prefix.to(tree.dtype), share.t().unsqueeze(-1).to(tree.dtype))
        return out.to(query.dtype).view(grouped.shape).transpose(1, 2).flatten(1)
