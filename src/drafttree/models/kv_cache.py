"""The KV cache: keys and values of committed tokens, and behind them those of the tree being scored.

One buffer `[layers, 2, batch, heads, capacity, head_dim]`. The first `length` rows are committed and every token may
attend to them; the `drafted` rows after them belong to the tree of this round. `commit` moves the accepted rows into
place with one gather, so an accepted token is never forwarded a second time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Cache

from drafttree.core.errors import ModelError


class TreeCache(Cache):
    """A KV cache of transformers whose newest rows form a tree.

    Attributes:
        length: committed rows.
        drafted: rows of the tree, after the committed ones.
        positions: `[batch, drafted]` positions of the drafted rows, None while there are none.
    """

    def __init__(self, layers: int, batch: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.length = 0
        self.drafted = 0
        self.positions: Tensor | None = None
        self._shape = (layers, 2, batch)
        self._capacity = capacity
        self._buffer: Tensor | None = None

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        """Store a layer's new rows `[batch, heads, nodes, head_dim]`; views of all its rows so far."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if key_states.shape != value_states.shape:
            raise ModelError(
                f"keys {tuple(key_states.shape)} and values {tuple(value_states.shape)} of different shapes: latent "
                "attention (MLA) layers cannot be verified in a tree"
            )
        buffer = self._reserve(key_states, key_states.shape[1], key_states.shape[3], end)
        keys, values = buffer[layer_idx, 0, :, :, :end], buffer[layer_idx, 1, :, :, :end]
        keys[:, :, start:] = key_states
        values[:, :, start:] = value_states
        return keys, values

    def rows(self, like: Tensor, heads: int, width: int, nodes: int) -> list[tuple[Tensor, Tensor]]:
        """Per layer, views `[batch, heads, rows, width]` of keys and values with room for a pass over `nodes` tokens.

        Args:
            like: a tensor of the cache's dtype and device.
            heads: of keys and values.
            width: of a head.
            nodes: tokens about to be scored; the last rows are theirs to be written.
        """
        end = self.get_seq_length() + nodes
        buffer = self._reserve(like, heads, width, end)[..., :end, :]
        return [(keys, values) for keys, values in buffer.unbind(0)]

    def grow(self, positions: Tensor) -> None:
        """Count the rows of a finished pass, whose positions are `[batch, nodes]`."""
        self.drafted += positions.shape[1]
        self.positions = positions if self.positions is None else torch.cat((self.positions, positions), 1)

    @torch.inference_mode()
    def commit(self, rows: Sequence[int]) -> None:
        """Commit these drafted rows, in this order, and drop the others.

        Args:
            rows: indices into the drafted rows.
        """
        count = len(rows)
        if self._buffer is not None and list(rows) != list(range(count)):
            index = torch.tensor(rows, device=self._buffer.device) + self.length
            self._buffer[..., self.length : self.length + count, :] = self._buffer.index_select(-2, index)
        self.length += count
        self.drafted = 0
        self.positions = None

    def committed(self) -> list[tuple[Tensor, Tensor]]:
        """Per layer, views `[batch, heads, length, head_dim]` of the committed keys and values."""
        if self._buffer is None:
            return []
        return [(keys, values) for keys, values in self._buffer[..., : self.length, :].unbind(0)]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows in use, drafted ones included."""
        return self.length + self.drafted

    @property
    def nbytes(self) -> int:
        """Memory of the buffer in bytes."""
        return self._buffer.nbytes if self._buffer is not None else 0

    def _reserve(self, like: Tensor, heads: int, width: int, rows: int) -> Tensor:
        """The buffer, with room for so many rows: made on first use, of the dtype and device of a tensor."""
        old = self._buffer
        if old is not None and (heads, width) != (old.shape[3], old.shape[5]):
            raise ModelError("layers whose key heads differ in number or width cannot be verified in a tree")
        if old is not None and rows <= self._capacity:
            return old
        if rows > self._capacity:
            self._capacity = rows + rows // 4
        self._buffer = self._allocate(like, heads, width)
        if old is not None:
            self._buffer[..., : old.shape[-2], :] = old
        return self._buffer

    def _allocate(self, like: Tensor, heads: int, width: int) -> Tensor:
        """A buffer of zeros of the cache's capacity."""
        return like.new_zeros(*self._shape, heads, self._capacity, width)
