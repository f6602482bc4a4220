"""The KV caches that layers of transformers are given in a packed pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from drafttree.core.errors import ModelError
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
        rows = self._store(key_states, value_states, layer_idx)
        self._rows[id(key_states)] = key_states, value_states, rows
        return key_states, value_states

    def rows_of(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """All keys and values by segment `[1, heads, rows, width]`, given what `update` returned.

        Raises:
            ModelError: the layer changed that before it attends.
        """
        keys, values, rows = self._rows.get(id(key), (None, None, []))
        if keys is not key or values is not value:
            raise ModelError("keys and values that are changed after they are stored cannot be packed as new rows only")
        return rows

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """What a node's index has to be added to, to find its position, for a layer that counts (Llama 4)."""
        own = self.positions[0]
        return 0 if layer_idx is None else own - torch.arange(len(own), device=own.device)

    def _store(self, keys: Tensor, values: Tensor, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Store new rows; all rows of the layer by segment."""
        new = zip(keys.split(self.sizes, 2), values.split(self.sizes, 2), strict=True)
        return [segment.cache.update(*own, layer) for segment, own in zip(self.segments, new, strict=True)]


class JoinedCache(PackedCache):
    """Hands out all rows of all segments behind each other, for layers that expand what they stored (latent attention).

    That copies them, so it is for layers that need it.
    """

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        """Store a layer's new rows `[1, heads, nodes, width]`; those of all segments `[1, heads, rows, width]`."""
        keys, values = zip(*self._store(key_states, value_states, layer_idx), strict=True)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def rows_of(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """All keys and values by segment, given what a layer made of all rows, row by row."""
        counts = [segment.cache.get_seq_length() + segment.nodes for segment in self.segments]
        return [*zip(key.split(counts, 2), value.split(counts, 2), strict=True)]
