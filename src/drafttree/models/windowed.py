"""The backend of `lossy_window`; see `drafttree.models.cache.lossy_window` for what it computes."""

from drafttree.models.base import Backend, WrappedBackend
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.cache.lossy_window import LossyWindow, WindowedRows

LONGEST_PASS = 512
"""Tokens of a pass for which room is made beforehand: a part of a prompt."""


class WindowedBackend(WrappedBackend):
    """Runs another backend on KV caches with a window. See `drafttree.models.base.Backend` for the protocol.

    Args:
        inner: runs the passes.
        window: of all layers.
    """

    def __init__(self, inner: Backend, window: LossyWindow) -> None:
        super().__init__(inner)
        self.lossy_window = self._window = window

    def new_cache(self, capacity: int) -> TreeCache:
        most = self._window.rows + self._window.slack + LONGEST_PASS
        cache = super().new_cache(min(capacity, most))
        cache.windowed = WindowedRows(self._window)
        return cache
