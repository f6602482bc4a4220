"""How far back tokens attend: the windows and chunks of attention layers, and lossy windows of whole texts.

A lossy window lets every layer attend to the first tokens and the latest ones only, in a KV cache that holds no others
(StreamingLLM). The text is that of another model, the windowed one. Plain decoding over the same window is its
baseline, and speculative decoding writes the same text, since every node of a tree attends to the rows that plain
decoding attends to at its position: which those are is decided by positions, and a row is dropped when no later token
sees it.

Xiao et al. (2023, arXiv 2309.17453) number the kept rows anew in every step, so a text may outgrow the model's context.
Here keys are kept as they were rotated, at their positions in the text: the same rows are seen, the latest ones at the
same distances, the first ones farther away, and a text ends with the model's context.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

CONFIGURED = -1
"""Value of `sliding_window` by which the layer's config decides."""


class Span(NamedTuple):
    """How far back a layer attends: all the way by default.

    Attributes:
        window: a token attends to those less than this many positions before it.
        chunk: a token attends to those in its own chunk of this many positions (Llama 4).
    """

    window: int | None = None
    chunk: int | None = None

    def hides(self, own: Tensor, keys: Tensor) -> Tensor:
        """Bool: which keys a token does not attend to, given its position and theirs; not for `EVERYTHING`."""
        if self.chunk is not None:
            return own // self.chunk != keys // self.chunk
        return own - keys >= (self.window or 0)

    def reaches(self, rows: int) -> bool:
        """Whether every one of the first rows attends to all before it."""
        return (self.window is None or rows <= self.window) and (self.chunk is None or rows <= self.chunk)


EVERYTHING = Span()


def span_of(module: Any, sliding_window: int | None = CONFIGURED) -> Span:
    """How far back a layer attends, by its config if it attends in chunks or passes on no `sliding_window`."""
    types = getattr(module.config, "layer_types", None)
    index = getattr(module, "layer_idx", None)  # none of Zamba's attention, which several layers share
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
        """Rows that a token attends to at most, and that are kept."""
        return self.sinks + self.size

    @property
    def slack(self) -> int:
        """Rows in excess of `rows` at which all of these are dropped: rarely, since that moves all newer rows."""
        return max(self.size // 4, 1)

    def reaches(self, rows: int) -> bool:
        """Whether every one of the first rows attends to all before it."""
        return rows <= self.rows

    def hides(self, own: Tensor, keys: Tensor) -> Tensor:
        """Bool: which keys a token does not attend to, given its position and theirs."""
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
        """Drop the rows that no later token attends to, once they exceed the slack; the number of rows dropped.

        Args:
            buffers: `[slots, 1, heads, capacity, width]`; newer rows move to where the dropped ones were.
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
        """The positions of committed rows, given their indices."""
        return torch.where(rows < self.window.sinks, rows, rows + self.dropped)
