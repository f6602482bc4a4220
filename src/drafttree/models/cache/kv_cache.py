"""The KV cache: keys and values of committed tokens, and behind them those of the tree being scored.

One buffer `[slots, 1, heads, capacity, width]` for all keys and values of one shape. The first `length` rows are
committed and every token may attend to them; the `drafted` rows after them belong to the tree of this round. `commit`
moves the accepted rows into place with one gather, so an accepted token is never forwarded a second time. With a
`LossyWindow`, committed rows that no later token attends to are dropped, so a row's index is below its position.
"""

import math
import os
from collections.abc import Mapping, Sequence
from mmap import mmap
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor
from transformers import Cache

from drafttree.models.cache.recurrent_states import RecurrentStates
from drafttree.models.host_copies import send
from drafttree.models.inference import in_inference_mode
from drafttree.models.windows import WindowedRows

if os.name == "posix":
    from mmap import MAP_ANONYMOUS, MAP_PRIVATE

NO_POSITIONS = np.zeros(0, dtype=np.int64)
LEAST_MAPPED = 1 << 20
"""Buffers of at least this many bytes have memory pages of their own."""


class LayerShape(NamedTuple):
    """The shape of a layer's keys `[batch, heads, rows, key_width]` and values `[batch, heads, rows, value_width]`."""

    heads: int
    key_width: int
    value_width: int


class Slot(NamedTuple):
    """The place of one layer's keys or values: the index of a buffer, and the index within that buffer."""

    buffer: int
    place: int


class CacheLayout:
    """Which buffers a KV cache has, and where in them each layer's keys and values are.

    Keys and values of the same shape share a buffer, so a commit moves all of them with one gather. Most models need
    one buffer. Layers of two widths (Gemma 4) or keys wider than values (MLA) need two.

    Args:
        shapes: by layer index, the shape of each layer that has its own keys and values.

    Attributes:
        slots: by layer index, the slots of its keys and its values.
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
        """The layout of layers that all have the shape given by a config of the Llama family."""
        return cls.uniform(config.num_hidden_layers, config.num_key_value_heads, config.head_dim)


def _take(counts: dict[tuple[int, int], int], heads: int, width: int) -> Slot:
    """Take the next free slot of the buffer for a shape. `counts` has the number of slots in use by shape."""
    index = counts.get((heads, width), 0)
    counts[heads, width] = index + 1
    return Slot(list(counts).index((heads, width)), index)


class TreeCache(Cache):
    """A KV cache of transformers for one sequence, whose newest rows form a tree.

    Args:
        layout: layout of keys and values. Each backend has its own, so rows of one layout are of the same weights.
        capacity: rows there is room for at first.

    Attributes:
        layout: as given.
        length: committed rows.
        first_position: how far positions are from the number of rows before them. 0, unless the cache holds only the
            end of a text, or begins with images of a model whose positions do not advance by one a row (M-RoPE).
        drafted: rows of the tree, after the committed ones.
        capacity: rows there is room for.
        positions: int64 `[drafted]` positions of the drafted rows, on the host.
        recurrent: the states of recurrent layers, which are committed with the rows.
        windowed: the window that tokens attend to and the rows it has dropped; None if they attend to all rows.
        long_rope: whether keys are rotated by LongRoPE's long frequencies.
        exact_text: whether attention must give a token the same result in every pass.
    """

    def __init__(self, layout: CacheLayout, capacity: int) -> None:
        super().__init__(layers=[])
        self.length = 0
        self.first_position = 0
        self.drafted = 0
        self.positions = NO_POSITIONS
        self.recurrent = RecurrentStates()
        self.windowed: WindowedRows | None = None
        self.long_rope = False
        self.exact_text = False
        self.layout = layout
        self.capacity = capacity
        self._buffers: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        """Store a layer's new rows `[1, heads, nodes, width]`, and return views of all its keys and values."""
        start = self.length + self.drafted
        end = start + key_states.shape[-2]
        self.reserve(key_states, end - start)
        keys, values = (self._buffers[slot.buffer][slot.place, :, :, :end] for slot in self.layout.slots[layer_idx])
        keys[:, :, start:] = key_states
        values[:, :, start:] = value_states
        return keys, values

    def reserve(self, like: Tensor, nodes: int) -> None:
        """Make room for a pass over `nodes` tokens.

        Args:
            like: a tensor of the cache's dtype and device.
            nodes: number of tokens that the pass scores.
        """
        rows = self.length + self.drafted + nodes
        if self._buffers and rows <= self.capacity:
            return
        if rows > self.capacity:
            self.capacity = rows + rows // 4
        old_buffers = self._buffers
        self._buffers = self._allocate(like)
        for buffer, old_buffer in zip(self._buffers, old_buffers, strict=False):
            buffer[..., : old_buffer.shape[-2], :] = old_buffer

    def pass_rows(self, nodes: int) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Views by layer of all keys and values `[1, heads, rows, width]` and of the new ones `[nodes, heads, width]`.

        Args:
            nodes: number of tokens that the pass scores, for which `reserve` has made room.
        """
        start = self.length + self.drafted
        stored_rows = []
        new_rows = []
        for buffer in self._buffers:
            stored_rows.append(buffer[..., : start + nodes, :].unbind(0))
            new_rows.append(buffer[:, 0, :, start : start + nodes].transpose(1, 2).unbind(0))
        return [
            (
                stored_rows[key_buffer][key_place],
                stored_rows[value_buffer][value_place],
                new_rows[key_buffer][key_place],
                new_rows[value_buffer][value_place],
            )
            for (key_buffer, key_place), (value_buffer, value_place) in self.layout.slots.values()
        ]

    @property
    def buffers(self) -> Sequence[Tensor]:
        """`[slots, 1, heads, capacity, width]` of each shape; see `CacheLayout`."""
        return self._buffers

    def grow(self, positions: Array) -> None:
        """Count the rows of a finished pass, at these positions (int64 `[nodes]`), as drafted."""
        self.positions = np.concatenate((self.positions, positions)) if self.drafted else positions
        self.drafted += len(positions)

    @in_inference_mode
    def commit(self, rows: Sequence[int]) -> None:
        """Commit these drafted rows, in this order, and drop the others.

        Args:
            rows: indices into the drafted rows.
        """
        count = len(rows)
        if self._buffers and [*rows] != [*range(count)]:
            (index,) = send([np.array(rows) + self.length], self._buffers[0].device)
            for buffer in self._buffers:
                buffer[..., self.length : self.length + count, :] = buffer.index_select(-2, index)
        if self.recurrent.layers:
            self.recurrent.commit(rows)
        self.length += count
        self.drafted = 0
        self.positions = NO_POSITIONS
        if self.windowed:
            self.length -= self.windowed.drop(self._buffers, self.length)

    @property
    def next_position(self) -> int:
        """The position of the token after the committed ones."""
        return self.first_position + self.read_tokens

    @property
    def read_tokens(self) -> int:
        """The number of committed tokens, those whose rows a window has dropped included."""
        return self.length + (self.windowed.dropped if self.windowed else 0)

    def committed_positions(self, device: torch.device) -> Tensor:
        """`[length]` positions of the committed rows."""
        rows = torch.arange(self.first_position, self.first_position + self.length, device=device)
        return self.windowed.positions(rows) if self.windowed else rows

    def drop_last(self, count: int) -> None:
        """Drop the newest drafted rows, which were padding."""
        if count:
            self.drafted -= count
            self.positions = self.positions[:-count]

    def hold_last(self) -> None:
        """Commit all drafted rows but the last one, after a pass that only read."""
        self.length += self.drafted - 1
        self.drafted = 1
        self.positions = self.positions[-1:]

    def committed(self) -> list[tuple[Tensor, Tensor]]:
        """Per layer, views `[1, heads, length, width]` of the committed keys and values."""
        return layer_rows(self.layout, [buffer[..., : self.length, :] for buffer in self._buffers])

    def committed_of(self, layer: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Views `[1, heads, length, width]` of the committed keys and values of one layer that has its own.

        Args:
            layer: index of the layer.
            like: a tensor of the dtype and device for the buffers of a cache that has none yet.
        """
        self.reserve(like, 0)
        keys, values = (self._buffers[slot.buffer][slot.place] for slot in self.layout.slots[layer])
        return keys[:, :, : self.length], values[:, :, : self.length]

    @in_inference_mode
    def copy_rows(self, rows: int) -> "TreeCache":
        """A cache with copies of the first `rows` committed rows, or of all if there are fewer, and no further room.

        It is empty if there are recurrent layers, whose states are those after the whole text, or a window, which may
        have dropped rows.
        """
        rows = 0 if self.recurrent or self.windowed else min(rows, self.length)
        copy = TreeCache(self.layout, rows)
        copy.length = rows
        copy.first_position = self.first_position
        copy.long_rope = self.long_rope
        copy._buffers = [buffer[..., :rows, :].clone() for buffer in self._buffers]
        return copy

    def can_copy_from(self, source: "TreeCache") -> bool:
        """Whether committed rows of another cache can be used in this one.

        They cannot if its layout (and so its weights) or its LongRoPE frequencies differ. They cannot either if one of
        the caches has a window or states of recurrent layers, since its rows are then not all it has.
        """
        same_keys = source.layout is self.layout and source.long_rope == self.long_rope
        return same_keys and not (source.recurrent or self.recurrent or source.windowed or self.windowed)

    @in_inference_mode
    def copy_from(self, source: "TreeCache", rows: int) -> int:
        """Copy the first `rows` committed rows of another cache, or all if there are fewer, to this empty one.

        Returns:
            The number of copied rows; 0 if they cannot be used in this cache.
        """
        rows = min(rows, source.length)
        if not self.can_copy_from(source) or rows <= 0:
            return 0
        self.reserve(source._buffers[0], rows)
        for buffer, source_buffer in zip(self._buffers, source._buffers, strict=True):
            buffer[..., :rows, :] = source_buffer[..., :rows, :]
        self.length = rows
        return rows

    can_resume, resume = can_copy_from, copy_from
    """Former names."""

    def reset(self) -> None:
        """Forget all rows."""
        self.length = 0
        self.first_position = 0
        self.recurrent.reset()
        if self.windowed:
            self.windowed.dropped = 0
        self.commit([])

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """Rows in use, drafted ones included."""
        return self.length + self.drafted

    @property
    def has_only_rows(self) -> bool:
        """Whether layers 0, 1, ... all have keys and values, and there are no states of recurrent layers."""
        return not self.recurrent and list(self.layout.slots) == list(range(len(self.layout.slots)))

    @property
    def nbytes(self) -> int:
        """Memory of the buffers and of the states of recurrent layers, in bytes."""
        return sum(buffer.nbytes for buffer in self._buffers) + self.recurrent.nbytes

    def _allocate(self, reference_tensor: Tensor) -> list[Tensor]:
        """Buffers of zeros of the cache's capacity."""
        return zero_buffers(self.layout, self.capacity, reference_tensor)


def zero_buffers(layout: CacheLayout, rows: int, reference_tensor: Tensor) -> list[Tensor]:
    """Buffers of zeros for this many rows, of the dtype and device of a tensor."""
    return [_zeros((slots, 1, heads, rows, width), reference_tensor) for heads, width, slots in layout.buffers]


def _zeros(shape: tuple[int, ...], reference_tensor: Tensor) -> Tensor:
    """Zeros that on a CPU take memory only once they are written, since many texts end far below their limit."""
    size = math.prod(shape) * reference_tensor.element_size()
    if reference_tensor.device.type != "cpu" or size < LEAST_MAPPED or os.name != "posix":
        return reference_tensor.new_zeros(shape)
    pages = mmap(-1, size, flags=MAP_PRIVATE | MAP_ANONYMOUS)  # torch would write its zeros, and so take the memory
    return torch.frombuffer(pages, dtype=reference_tensor.dtype).view(shape)


def layer_rows(layout: CacheLayout, buffers: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Per layer, views of its keys and values in buffers of a layout."""
    views = [buffer.unbind(0) for buffer in buffers]
    return [
        (views[keys.buffer][keys.place], views[values.buffer][values.place]) for keys, values in layout.slots.values()
    ]
