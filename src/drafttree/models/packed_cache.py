"""The KV cache that layers of transformers are given in a packed pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from drafttree.models.segment import Segment


class PackedCache(Cache):
    """Stores the new rows of every segment in its own KV cache, and hands them through as they are.

    A layer gives what it is handed to its attention function, which finds the rows of every segment by it.

    Args:
        segments: of the pass, in their order.

    Attributes:
        segments: as given.
        sizes: nodes of every segment.
        positions: `[1, nodes]` of all segments.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        super().__init__(layers=[])
        self.segments = segments
        self.sizes = [segment.nodes for segment in segments]
        self.positions = torch.cat([segment.positions for segment in segments], 1)
        self._rows: dict[int, tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        """Store a layer's new rows `[1, heads, nodes, width]`, which are returned."""
        new = zip(key_states.split(self.sizes, 2), value_states.split(self.sizes, 2), strict=True)
        rows = [segment.cache.update(*own, layer_idx) for segment, own in zip(self.segments, new, strict=True)]
        self._rows[id(key_states)] = key_states, value_states, rows
        return key_states, value_states

    def rows_of(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """All keys and values by segment `[1, heads, rows, width]`, given the new ones that `update` returned.

        Raises:
            KeyError: the layer changed them before it attends, or did not store them.
        """
        keys, values, rows = self._rows[id(key)]
        if keys is not key or values is not value:
            raise KeyError("keys and values of different layers")
        return rows

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """What a node's index has to be added to, to find its position, for a layer that counts (Llama 4)."""
        own = self.positions[0]
        return 0 if layer_idx is None else own - torch.arange(len(own), device=own.device)
