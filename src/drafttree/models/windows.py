"""How far back tokens attend: the windows and chunks of attention layers, and lossy windows of whole texts.

A lossy window lets every layer attend to the first tokens and the latest ones only, in a KV cache that holds no others
(StreamingLLM). The text is that of another model, the windowed one. Its baseline is plain decoding over the same
window. Speculative decoding writes the same text, since a node of a tree attends to the same rows as plain decoding at
its position. Only positions decide which rows those are, and a row is dropped when no later token sees it.

Xiao et al. (2023, arXiv 2309.17453) number the kept rows anew in every step, so a text may outgrow the model's context.
Here keys keep their rotation, that of their positions in the text. So tokens see the same rows, but the first ones at
larger distances, and a text ends with the model's context.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

CONFIGURED = -1
"""Value of `sliding_window` by which the layer's config decides."""


class Span(NamedTuple):
    """How far back a layer attends; by default to the first row.

    Attributes:
        window: a token attends to those less than this many positions before it.
        chunk: a token attends to those in its own chunk of this many positions (Llama 4).
    """

    window: int | None = None
    chunk: int | None = None

    def hides(self, own: Tensor, keys: Tensor) -> Tensor:
        """Bool mask of the keys outside a token's window, by its position and the keys'. Not for `EVERYTHING`."""
        if self.chunk is not None:
            return own // self.chunk != keys // self.chunk
        return own - keys >= (self.window or 0)

    def reaches(self, rows: int) -> bool:
        """Whether each of the first `rows` rows attends to all rows before it."""
        return (self.window is None or rows <= self.window) and (self.chunk is None or rows <= self.chunk)


EVERYTHING = Span()


def span_of(module: Any, sliding_window: int | None = CONFIGURED) -> Span:
    """How far back a layer attends. Its config decides if it attends in chunks or passes no `sliding_window` on."""
    types = getattr(module.config, "layer_types", None)
    index = getattr(module, "layer_idx", None)  # Zamba's attention has none, since several layers share it
    layer_type = "sliding_attention" if index is None or not types else types[index]
    if layer_type == "chunked_attention":
        return Span(chunk=module.config.attention_chunk_size)
    if sliding_window != CONFIGURED:
        return Span(sliding_window)
    return Span(getattr(module.config, "sliding_window", None) if layer_type == "sliding_attention" else None)


class LossyWindow(NamedTuple):
    """The rows that a token attends to.

    Attributes:
        size: a token attends to itself and to the `size` - 1 tokens before it.
        sinks: number of first tokens of the text to which every token attends as well.
    """

    size: int
    sinks: int = 4

    @property
    def rows(self) -> int:
        """Most rows that a token attends to; this many are kept."""
        return self.sinks + self.size

    @property
    def slack(self) -> int:
        """Rows beyond `rows` that may gather before they are dropped together, since a drop moves all newer rows."""
        return max(self.size // 4, 1)

    def reaches(self, rows: int) -> bool:
        """Whether each of the first `rows` rows attends to all rows before it."""
        return rows <= self.rows

    def hides(self, own: Tensor, keys: Tensor) -> Tensor:
        """Bool mask of the keys outside a token's window, by its position and the keys'."""
        return (own - keys >= self.size) & (keys >= self.sinks)


class WindowedRows:
    """Counts and drops the committed rows of one text that its window has left behind.

    Args:
        window: decides which rows are dropped.

    Attributes:
        window: as given.
        dropped: number of committed rows that were dropped.
    """

    def __init__(self, window: LossyWindow) -> None:
        self.window = window
        self.dropped = 0

    def drop(self, buffers: Sequence[Tensor], rows: int) -> int:
        """Drop the rows that no later token attends to if they exceed the slack, and return their number.

        Args:
            buffers: `[slots, 1, heads, capacity, width]`; newer rows move to the place of the dropped ones.
            rows: number of committed rows in the buffers.
        """
        window = self.window
        count = rows - window.rows
        if count < window.slack:
            return 0
        for buffer in buffers:
            newest_rows = buffer[..., window.sinks + count : rows, :]
            buffer[..., window.sinks : window.rows, :] = newest_rows.clone()
        self.dropped += count
        return count

    def positions(self, rows: Tensor) -> Tensor:
        """The positions of the committed rows with these indices."""
        return torch.where(rows < self.window.sinks, rows, rows + self.dropped)
