"""The layout of a KV cache: which layers have keys and values, of which shapes, and which buffer they lie in."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class LayerShape(NamedTuple):
    """The shape of a layer's keys `[batch, heads, rows, key_width]` and values `[batch, heads, rows, value_width]`."""

    heads: int
    key_width: int
    value_width: int


class Slot(NamedTuple):
    """The place of the keys, or of the values, of one layer: an index into the buffers and one into that buffer."""

    buffer: int
    place: int


class CacheLayout:
    """Keys and values of the same shape share a buffer, so a commit moves all of them with one gather.

    Most models need one buffer. Layers of two widths (Gemma 4) or keys wider than values (MLA) need two.

    Args:
        shapes: of the layers that have keys and values of their own, by layer index.

    Attributes:
        slots: of keys and values by layer index.
        buffers: heads, width and number of slots of each buffer.
    """

    def __init__(self, shapes: Mapping[int, LayerShape]) -> None:
        counts: dict[tuple[int, int], int] = {}
        self.slots: dict[int, tuple[Slot, Slot]] = {}
        for layer, (heads, *widths) in shapes.items():
            self.slots[layer] = _take(counts, heads, widths[0]), _take(counts, heads, widths[1])
        self.buffers = [(heads, width, count) for (heads, width), count in counts.items()]

    @classmethod
    def uniform(cls, layers: int, heads: int, width: int) -> "CacheLayout":
        """The layout of layers that all have keys and values of one shape."""
        return cls(dict.fromkeys(range(layers), LayerShape(heads, width, width)))

    @classmethod
    def of_config(cls, config: Any) -> "CacheLayout":
        """The layout of layers that all are as a config of the Llama family says."""
        return cls.uniform(config.num_hidden_layers, config.num_key_value_heads, config.head_dim)


def _take(counts: dict[tuple[int, int], int], heads: int, width: int) -> Slot:
    """The next slot of the buffer of this shape."""
    index = counts.get((heads, width), 0)
    counts[heads, width] = index + 1
    return Slot(list(counts).index((heads, width)), index)
