"""The inputs of recorded passes over one request, whose nodes attend to the rows of its KV cache under a mask."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.models.cache.buffer_pool import PooledBuffers, PooledCache
from drafttree.models.cache.kv_cache import CacheLayout, layer_rows
from drafttree.models.fused.pass_inputs import PassInputs, Visibility
from drafttree.models.host_copies import as_placed, byte_places, packed_bits, send_to, unpacked_bits
from drafttree.models.segment import Segment
from drafttree.models.windows import EVERYTHING

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Node counts of recorded passes. Larger passes, which read prompts, are not recorded."""
MAX_DRAFTED = 1024
"""Drafted rows that a recorded pass can see; a pass that sees more is not recorded."""


class StaticAttention(NamedTuple):
    """Attention of a recorded pass over one request, to all rows of its buffers under a mask. See `PassAttention`.

    Attributes:
        new_rows: `[nodes]` indices of the rows where the nodes' keys and values are written.
        visible: rows that the nodes attend to.
    """

    new_rows: Tensor
    visible: Visibility

    def attend(self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        """See `PassAttention`; `rows` are the keys and values `[1, key heads, rows, width]` of a layer."""
        for stored_rows, new_states in zip(rows, (key, value), strict=True):
            stored_rows[:, :, self.new_rows] = new_states[None].transpose(1, 2)
        return self.read(query, rows, scale)

    def read(self, query: Tensor, rows: tuple[Tensor, Tensor], scale: float) -> Tensor:
        return self.visible.attend(query.unflatten(1, (rows[0].shape[1], -1)), *rows, scale).flatten(1)


class MaskedInputs:
    """Makes the inputs of passes over one request. See `drafttree.models.recorded.recorded_passes.InputBuilder`.

    All passes read the same memory, which the host writes in one copy. It includes the numbers of committed and drafted
    rows, from which a pass computes its mask on the device.

    Args:
        layout: layout of the KV caches.
        groups: query heads that share a key head.
        reference_tensor: a tensor of the dtype and device of a pass.
        hidden_size: width of the states that a draft head reads, 0 for a model.
    """

    padding = BUCKETS[-1]
    takes_windows = False

    def __init__(self, layout: CacheLayout, groups: int, reference_tensor: Tensor, hidden_size: int) -> None:
        nodes = BUCKETS[-1]
        self._layout = layout
        self._groups = groups
        arrays = _arrays(nodes)
        self._memory = torch.zeros(byte_places(arrays)[-1], dtype=torch.uint8, device=reference_tensor.device)
        self._numbers, self._visible_bits = as_placed(self._memory, arrays)
        self._written_states = 0  # nodes of the last pass
        self._hidden_states = torch.zeros(
            1, nodes, hidden_size, dtype=reference_tensor.dtype, device=reference_tensor.device
        )

    def make_room(self, segments: Sequence[Segment], reference_tensor: Tensor) -> int | None:
        (segment,) = segments
        nodes, drafted = segment.visible.shape
        if nodes > BUCKETS[-1] or drafted > MAX_DRAFTED:
            return None
        bucket = next(size for size in BUCKETS if size >= nodes)
        segment.cache.reserve(reference_tensor, bucket)
        return bucket

    def recorded(self, segments: Sequence[Segment]) -> dict[Any, Any]:
        return _pooled(segments).passes

    def rows(self, segments: Sequence[Segment]) -> list[tuple[Tensor, Tensor]]:
        """Per layer the keys and values `[1, key heads, rows, width]` of all rows of the cache's buffers."""
        return layer_rows(self._layout, _pooled(segments).buffers)

    def store(self, segments: Sequence[Segment], hidden_states: Tensor, sizes: int, memory: None = None) -> None:
        (segment,) = segments
        nodes, drafted = segment.visible.shape
        start = segment.cache.get_seq_length()
        numbers, visible_bits = _arrays(sizes)
        numbers[0, :nodes] = segment.tokens
        numbers[1, :nodes] = segment.positions
        numbers[2, :3] = segment.cache.length, start, start + nodes
        visible_bits[:nodes, : -(-drafted // 8)] = packed_bits(segment.visible)
        send_to([numbers, visible_bits], self._memory)
        if self._hidden_states.numel():
            self._hidden_states[:, :nodes] = hidden_states
            if nodes < self._written_states:
                self._hidden_states[:, nodes:].zero_()  # an earlier pass may have left NaN
            self._written_states = nodes

    def inputs(self, memory: None, sizes: int, rows: list[tuple[Tensor, Tensor]]) -> PassInputs:
        """See `InputBuilder`. Padding nodes are masked from all others and attend to the prefix and to themselves."""
        length, start, end = self._numbers[2, :3]
        new_rows = start + torch.arange(sizes, device=start.device)
        columns = torch.arange(rows[0][0].shape[-2], device=start.device)
        drafted_visible = unpacked_bits(self._visible_bits[:sizes], MAX_DRAFTED)
        visible_rows = _visible_rows(columns, length, end, drafted_visible) | (columns == new_rows[:, None])
        mask = torch.zeros(visible_rows.shape, dtype=self._hidden_states.dtype, device=start.device).masked_fill_(
            ~visible_rows, -torch.inf
        )
        attention = StaticAttention(new_rows, Visibility(mask.repeat(self._groups, 1)[None, None]))
        attentions = {(EVERYTHING, self._groups): attention}
        tokens = self._numbers[:1, :sizes]
        positions = self._numbers[1:2, :sizes]
        hidden_states = self._hidden_states[:, :sizes]
        return PassInputs(tokens, positions, hidden_states, rows, lambda span, groups: attentions[span, groups])

    def unrecorded(self, segments: Sequence[Segment], hidden_states: Tensor) -> PassInputs:
        """See `InputBuilder`. Here there may be several requests, with any KV caches."""
        return PassInputs.of(segments, hidden_states)


def _arrays(nodes: int) -> tuple[Array, Array]:
    """Arrays of zeros that the host fills and copies for a pass.

    The bits come last, so that a pass over fewer nodes copies fewer bytes and all arrays keep their places.

    Returns:
        int64 `[3, nodes of the largest pass]`: token ids, positions, and three numbers of rows: the committed ones,
        those in use before the pass, and those in use after it. And uint8 `[nodes, MAX_DRAFTED / 8]`: for each node,
        one bit for every drafted row, set if the node may attend to it.
    """
    return np.zeros((3, BUCKETS[-1]), dtype=np.int64), np.zeros((nodes, MAX_DRAFTED // 8), dtype=np.uint8)


def _visible_rows(columns: Tensor, length: Tensor, end: Tensor, drafted_visible: Tensor) -> Tensor:
    """Bool `[nodes, rows]`: which rows of a KV cache nodes attend to: all committed ones, and some drafted ones.

    Args:
        columns: `[rows]` indices of the rows.
        length: number of committed rows.
        end: number of rows in use.
        drafted_visible: bool `[nodes, MAX_DRAFTED]` which drafted rows nodes attend to.
    """
    drafted_indices = columns - length
    tree_visible = drafted_visible.index_select(1, drafted_indices.clamp(0, MAX_DRAFTED - 1)) & (columns < end)
    return (drafted_indices < 0) | tree_visible


def _pooled(segments: Sequence[Segment]) -> PooledBuffers:
    cache = segments[0].cache
    assert isinstance(cache, PooledCache)
    return cache.pooled
