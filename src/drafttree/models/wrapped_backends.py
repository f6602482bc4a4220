"""Backends that run another backend, among them that of `lossy_window`."""

from collections.abc import Sequence

from drafttree.models.base import Backend
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.segment import Output, Segment
from drafttree.models.windows import LossyWindow, WindowedRows

LONGEST_PASS = 512
"""Rows allocated beforehand for the largest pass, which reads a part of a prompt."""


class WrappedBackend:
    """Base of backends that run another one.

    Args:
        inner: runs the passes.
    """

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.device = inner.device
        self.exact_text = inner.exact_text
        self.lossy_window = inner.lossy_window
        self.packed_nbytes = inner.packed_nbytes
        self.fallback_reason = inner.fallback_reason

    @property
    def shares_passes(self) -> bool:
        return self._inner.shares_passes

    def new_cache(self, capacity: int) -> TreeCache:
        return self._inner.new_cache(capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        return self._inner.forward(segments, hidden_layers=hidden_layers)


class WindowedBackend(WrappedBackend):
    """Runs another backend on KV caches with a window. See `drafttree.models.base.Backend` for the protocol.

    Args:
        inner: runs the passes.
        window: the window of all layers.
    """

    def __init__(self, inner: Backend, window: LossyWindow) -> None:
        super().__init__(inner)
        self.lossy_window = self._window = window

    def new_cache(self, capacity: int) -> TreeCache:
        max_rows = self._window.rows + self._window.slack + LONGEST_PASS
        cache = super().new_cache(min(capacity, max_rows))
        cache.windowed = WindowedRows(self._window)
        return cache
