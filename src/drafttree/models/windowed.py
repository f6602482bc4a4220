"""The backend of `lossy_window`; see `drafttree.models.cache.lossy_window` for what it computes."""

from collections.abc import Sequence

from drafttree.models.base import Backend, Output
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.cache.lossy_window import LossyWindow
from drafttree.models.segment import Segment

LONGEST_PASS = 512
"""Tokens of a pass for which room is made beforehand: a part of a prompt."""


class WindowedBackend:
    """Runs another backend on KV caches with a window. See `drafttree.models.base.Backend` for the protocol.

    Args:
        inner: runs the passes.
        window: of all layers.

    Attributes:
        window: as given.
        packed_nbytes: memory of packed copies of its weights, beside the weights themselves.
    """

    def __init__(self, inner: Backend, window: LossyWindow) -> None:
        self.device = inner.device
        self.window = window
        self._inner = inner
        self.packed_nbytes: int = getattr(inner, "packed_nbytes", 0)

    @property
    def shares_passes(self) -> bool:
        return self._inner.shares_passes

    def new_cache(self, capacity: int) -> TreeCache:
        most = self.window.rows + self.window.slack + LONGEST_PASS
        cache = self._inner.new_cache(min(capacity, most))
        cache.window = self.window
        return cache

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        return self._inner.forward(segments, hidden_layers=hidden_layers)
