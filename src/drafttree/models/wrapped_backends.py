"""Backends that wrap another backend; `WindowedBackend` is that of `lossy_window`."""

from collections.abc import Sequence

from drafttree.models.base import Backend
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.segment import Output, Segment
from drafttree.models.windows import LossyWindow, WindowedRows

LONGEST_PASS = 512
"""Rows of the largest pass, over a part of a prompt; a windowed cache has room for them beyond its window."""


def wrapped_name(backend: object, inner_backend: Backend) -> str:
    """The name of a backend that wraps another one."""
    return f"{type(backend).__name__} of {inner_backend.name}"


class WrappedBackend:
    """Base of backends that wrap another one.

    Args:
        inner_backend: runs the passes.
    """

    def __init__(self, inner_backend: Backend) -> None:
        self._inner_backend = inner_backend
        self.name = wrapped_name(self, inner_backend)
        self.device = inner_backend.device
        self.exact_text = inner_backend.exact_text
        self.lossy_window = inner_backend.lossy_window
        self.packed_nbytes = inner_backend.packed_nbytes
        self.fallback_reason = inner_backend.fallback_reason

    @property
    def shares_passes(self) -> bool:
        return self._inner_backend.shares_passes

    def new_cache(self, capacity: int) -> TreeCache:
        return self._inner_backend.new_cache(capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        return self._inner_backend.forward(segments, hidden_layers=hidden_layers)


class WindowedBackend(WrappedBackend):
    """Runs another backend on KV caches with a window. See `drafttree.models.base.Backend` for the protocol.

    Args:
        inner_backend: runs the passes.
        window: the window of every layer.
    """

    def __init__(self, inner_backend: Backend, window: LossyWindow) -> None:
        super().__init__(inner_backend)
        self.lossy_window = self._window = window

    def new_cache(self, capacity: int) -> TreeCache:
        max_rows = self._window.rows + self._window.slack + LONGEST_PASS
        cache = super().new_cache(min(capacity, max_rows))
        cache.windowed = WindowedRows(self._window)
        return cache
