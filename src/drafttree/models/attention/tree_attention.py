"""Attention over a committed prefix and a tree, registered with transformers as `drafttree`.

Every token attends to the whole prefix and, within the tree, to its ancestors and itself. Layers with a sliding window
or with chunked attention attend only to the rows of both that lie within the window or the chunk. Query heads that
share a key head are stacked as rows of one attention, so grouped-query models need no copy of keys and values.
"""

from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from drafttree.core.errors import ModelError
from drafttree.models.attention.exact_attention import QueryBlock, attend_exactly, query_blocks
from drafttree.models.host_copies import send
from drafttree.models.segment import Segment
from drafttree.models.windows import CONFIGURED, EVERYTHING, LossyWindow, Span, span_of

NAME = "drafttree"
FOREIGN_SCORES = {
    "attention_mask": "a mask of their own",
    "position_bias": "a bias of their own for positions",
    "indices": "sparse attention, whose layers choose the tokens they attend to",
    "block_indices": "sparse attention, whose layers choose the tokens they attend to",
}
"""Arguments of attention functions that a tree pass does not reproduce, and what an error calls them."""


class NoTreeError(ModelError):
    """Our attention function was called without a `tree_plan`."""


class Masks(Protocol):
    """Masks by which the queries of a pass attend to the rows of one KV cache."""

    @property
    def blocks(self) -> list[QueryBlock] | None:
        """How attention is split for `exact_text`; None without it."""
        ...

    def mask(self, groups: int, span: Span = EVERYTHING) -> Tensor | None:
        """Additive mask `[batch, 1, groups * nodes, rows]`, None if every query attends to all rows."""
        ...


class AttentionPart(NamedTuple):
    """The inputs of attention over one KV cache.

    Attributes:
        query: `[batch, heads, nodes, width]`.
        key: `[batch, key heads, rows, width]` of all rows, the new ones included.
        value: values of the same rows.
        plan: masks between nodes and rows.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    plan: Masks

    @property
    def groups(self) -> int:
        """Query heads that share a key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def stacked_query(self) -> Tensor:
        """`[batch, key heads, groups * nodes, width]`: for each key head the queries of each of its query heads."""
        batch, _, nodes, width = self.query.shape
        return self.query.reshape(batch, self.key.shape[1], self.groups * nodes, width)


class Plan(Protocol):
    """Tells the attention function which nodes attend to which rows, in a pass over one or several KV caches."""

    def parts(self, query: Tensor, key: Tensor, value: Tensor) -> list[AttentionPart]:
        """Split by KV cache what a layer hands to its attention function."""
        ...


class TreePlan:
    """The attention masks of one pass, made once and shared by all layers.

    Args:
        segment: the new tokens, and their KV cache in its state before the pass.
        positions: `[1, nodes]` positions of the segment, on the device of the pass.
        visible: bool `[1, nodes, drafted]` of the segment, on the device of the pass.
        dtype: dtype of the additive mask.

    Attributes:
        blocks: how attention is split for `exact_text`; None without it.
    """

    def __init__(self, segment: Segment, positions: Tensor, visible: Tensor, dtype: torch.dtype) -> None:
        cache = segment.cache
        self._segment = segment
        self._cache = cache
        self._positions = positions
        self._visible = visible
        self._dtype = dtype
        self._masks: dict[tuple[int, Span], Tensor | None] = {}
        self._end = cache.next_position + visible.shape[2]
        window = cache.windowed.window if cache.windowed else None
        self._window = None if window is None or window.reaches(self._end) else window
        self.blocks: list[QueryBlock] | None = query_blocks(segment, visible.device) if cache.exact_text else None

    def mask(self, groups: int, span: Span = EVERYTHING) -> Tensor | None:
        """Additive mask `[batch, 1, groups * nodes, rows]`, None if every query attends to all rows."""
        key = (groups, EVERYTHING if span.reaches(self._end) else span)
        if key not in self._masks:
            self._masks[key] = self._make(*key)
        return self._masks[key]

    def parts(self, query: Tensor, key: Tensor, value: Tensor) -> list[AttentionPart]:
        """What a layer hands to its attention function, as a single part, since there is one KV cache."""
        return [AttentionPart(query, key, value, self)]

    def full_mask(self) -> Tensor:
        """Additive mask `[batch, 1, nodes, rows]`, never None, for layers that add it to their scores themselves."""
        mask = self.mask(1)
        if mask is not None:
            return mask
        nodes, drafted = self._visible.shape[1:]
        return self._visible.new_zeros(1, 1, nodes, self._cache.length + drafted, dtype=self._dtype)

    def _make(self, groups: int, span: Span) -> Tensor | None:
        limits: list[Span | LossyWindow] = [] if span is EVERYTHING else [span]
        limits += [self._window] if self._window else []
        if not limits and self._is_all_visible():
            return None
        mask = torch.zeros(self._visible.shape, dtype=self._dtype, device=self._visible.device)
        mask = F.pad(mask.masked_fill_(~self._visible, -torch.inf), (self._cache.length, 0))
        for limit in limits:
            hidden_keys = limit.hides(self._positions[..., None], self.key_positions()[:, None])
            mask = mask.masked_fill(hidden_keys, -torch.inf)
        return mask.repeat(1, groups, 1)[:, None]

    def _is_all_visible(self) -> bool:
        """Whether every node sees all drafted rows. Only a single node can, since none sees nodes after itself."""
        return self._segment.nodes == 1 and bool(self._segment.visible.all())

    def key_positions(self) -> Tensor:
        """The position of every row, `[1, rows]`."""
        device = self._positions.device
        positions = [self._cache.committed_positions(device)[None], self._positions]
        if self._cache.drafted:
            positions.insert(1, send([self._cache.positions], device)[0][None])
        return torch.cat(positions, 1)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    tree_plan: Plan | None = None,
    scaling: float | None = None,
    sliding_window: int | None = CONFIGURED,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **other_arguments: object,
) -> tuple[Tensor, None]:
    """The attention function transformers calls: `[batch, heads, nodes, width]` to `[batch, nodes, heads, ...]`.

    Args:
        softcap: bound of the scores, as softcap * tanh(score / softcap) (Gemma 2).
        s_aux: `[heads]` attention sinks: scores of one more row, which has no value (gpt-oss).

    Raises:
        NoTreeError: there is no `tree_plan`, since the call is not part of a tree pass or the layer did not pass it on.
        ModelError: the layer adds something to its scores that a tree pass does not reproduce.
    """
    if tree_plan is None:
        raise NoTreeError("drafttree is running this model in another thread; call it when that text has ended")
    arguments = {"attention_mask": attention_mask, **other_arguments}
    if foreign_features := [feature for name, feature in FOREIGN_SCORES.items() if arguments.get(name) is not None]:
        raise ModelError(f"{type(module).__name__} layers with {foreign_features[0]} cannot be verified in a tree")
    span = span_of(module, sliding_window)
    outs = [
        _attend(attention_part, span, scaling, softcap, s_aux) for attention_part in tree_plan.parts(query, key, value)
    ]
    return outs[0] if len(outs) == 1 else torch.cat(outs, 1), None


def _attend(
    attention_part: AttentionPart, span: Span, scaling: float | None, softcap: float | None, s_aux: Tensor | None
) -> Tensor:
    """Attention over one KV cache, `[batch, nodes, heads, width]`."""
    query, key, value, plan = attention_part
    groups = attention_part.groups
    nodes = query.shape[2]
    stacked_query = attention_part.stacked_query
    mask = plan.mask(groups, span)
    blocks = plan.blocks
    if softcap is not None or s_aux is not None:
        sinks = None if s_aux is None else s_aux.view(1, key.shape[1], groups, 1).repeat_interleave(nodes, 2)
        dtype = query.dtype if blocks is None else torch.float64
        rows = stacked_query.to(dtype), key.to(dtype), value.to(dtype)
        out = _attend_by_scores(*rows, mask, scaling or query.shape[3] ** -0.5, softcap, sinks)
    elif blocks is not None:
        out = attend_exactly(stacked_query.unflatten(2, (groups, nodes)), key, value, mask, scaling, blocks, span)
    else:
        out = F.scaled_dot_product_attention(stacked_query, key, value, attn_mask=mask, scale=scaling)
    return out.to(query.dtype).reshape(*query.shape[:3], -1).transpose(1, 2).contiguous()


def _attend_by_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention with capped scores or sinks, which torch's fused kernels do not offer."""
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is not None:
        scores = torch.cat((scores, sinks.to(scores.dtype).expand(len(scores), -1, -1, -1)), -1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    return weights[..., : key.shape[2]] @ value


AttentionInterface.register(NAME, attend)
