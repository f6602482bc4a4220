"""How far back attention layers attend."""

from typing import Any, NamedTuple

from torch import Tensor

CONFIGURED = -1
"""Where a layer does not say, its config does."""


class Span(NamedTuple):
    """How far back a layer attends: all the way by default.

    Attributes:
        window: a token attends to those less than this many positions before it.
        chunk: a token attends to those in its own chunk of this many positions (Llama 4).
    """

    window: int | None = None
    chunk: int | None = None

    def hides(self, own: Tensor, keys: Tensor) -> Tensor:
        """Bool: which keys a token does not attend to, given its position and theirs; not for one without limits."""
        if self.chunk is not None:
            return own // self.chunk != keys // self.chunk
        return own - keys >= (self.window or 0)

    def reaches(self, rows: int) -> bool:
        """Whether every one of the first rows attends to all before it."""
        return (self.window is None or rows <= self.window) and (self.chunk is None or rows <= self.chunk)


EVERYTHING = Span()


def span_of(module: Any, sliding_window: int | None = CONFIGURED) -> Span:
    """How far back a layer attends. Some models leave it to the mask, and do not pass it on."""
    types = getattr(module.config, "layer_types", None)
    kind = types[module.layer_idx] if types else "sliding_attention"
    if kind == "chunked_attention":
        return Span(chunk=module.config.attention_chunk_size)
    if sliding_window != CONFIGURED:
        return Span(sliding_window)
    return Span(getattr(module.config, "sliding_window", None) if kind == "sliding_attention" else None)
