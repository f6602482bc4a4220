"""Attention over a committed prefix and a tree, registered with transformers as `drafttree`.

Every token attends to the whole prefix and, within the tree, to its ancestors and itself. Layers with a sliding window
attend only to the rows of both that lie within the window. Query heads that share a key head are stacked as rows of one
attention, so grouped-query models need no copy of keys and values.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from drafttree.core.errors import ModelError
from drafttree.models.kv_cache import TreeCache

NAME = "drafttree"
CONFIGURED = -1


class NoTreeError(ModelError):
    """A layer that attends to trees was called without one."""


class TreePlan:
    """The attention masks of one pass, made once and shared by all layers.

    Args:
        cache: the KV cache before the pass.
        positions: `[batch, nodes]` positions of the new tokens.
        visible: bool `[batch, nodes, drafted]` over the drafted rows, the new ones included.
        dtype: of the additive mask.
    """

    def __init__(self, cache: TreeCache, positions: Tensor, visible: Tensor, dtype: torch.dtype) -> None:
        self._cache = cache
        self._positions = positions
        self._visible = visible
        self._dtype = dtype
        self._masks: dict[tuple[int, int | None], Tensor | None] = {}

    def mask(self, groups: int, window: int | None) -> Tensor | None:
        """Additive mask `[batch, 1, groups * nodes, rows]`, None where everything is visible."""
        key = (groups, window)
        if key not in self._masks:
            self._masks[key] = self._make(groups, window)
        return self._masks[key]

    def _make(self, groups: int, window: int | None) -> Tensor | None:
        prefix = self._cache.length
        if window is not None and prefix + self._visible.shape[2] <= window:
            window = None
        if window is None and self._visible.shape[1:] == (1, 1):
            return None
        mask = torch.zeros(self._visible.shape, dtype=self._dtype, device=self._visible.device)
        mask = F.pad(mask.masked_fill_(~self._visible, -torch.inf), (prefix, 0))
        if window is not None:
            distance = self._positions[..., None] - self._key_positions()[:, None]
            mask = mask.masked_fill(distance >= window, -torch.inf)
        return mask.repeat(1, groups, 1)[:, None]

    def _key_positions(self) -> Tensor:
        """`[batch, rows]` positions of every row; a committed row's position is its index."""
        prefix = torch.arange(self._cache.length, device=self._positions.device).expand(len(self._positions), -1)
        drafted = [] if self._cache.positions is None else [self._cache.positions]
        return torch.cat((prefix, *drafted, self._positions), 1)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_plan: TreePlan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = CONFIGURED,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """The attention function transformers calls: `[batch, heads, nodes, head_dim]` to `[batch, nodes, heads, ...]`.

    Raises:
        ModelError: the layer does something to its scores that a tree pass does not reproduce.
    """
    if tree_plan is None:
        raise NoTreeError(
            "this model attends to trees while drafttree holds it; call release() on its TargetModel "
            "(decoder.target.release()) to use it otherwise"
        )
    own = {"soft-capped scores": softcap, "attention sinks": s_aux, "a mask of their own": attention_mask}
    kinds = [kind for kind, given in own.items() if given is not None]
    if kinds:
        raise ModelError(f"{type(module).__name__} layers with {kinds[0]} cannot be verified in a tree")
    batch, heads, nodes, width = query.shape
    groups = heads // key.shape[1]
    stacked = query.reshape(batch, key.shape[1], groups * nodes, width)
    mask = tree_plan.mask(groups, _window(module) if sliding_window == CONFIGURED else sliding_window)
    out = F.scaled_dot_product_attention(stacked, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(batch, heads, nodes, -1).transpose(1, 2).contiguous(), None


def _window(module: nn.Module) -> int | None:
    """The sliding window of a layer that leaves it to the mask: some models do not pass it on."""
    types = getattr(module.config, "layer_types", None)
    if types and types[module.layer_idx] != "sliding_attention":
        return None
    return getattr(module.config, "sliding_window", None)


AttentionInterface.register(NAME, attend)
