"""The backend of `lossy_window`; see `drafttree.models.lossy_window` for what it computes."""

from collections.abc import Sequence

from torch import Tensor

from drafttree.models.base import Backend, Output
from drafttree.models.kv_cache import TreeCache
from drafttree.models.lossy_window import LossyWindow
from drafttree.models.packed import forward_packed, shares_passes
from drafttree.models.segment import Segment

LONGEST_PASS = 512
"""Tokens of a pass for which room is made beforehand: a part of a prompt."""


class WindowedBackend:
    """Runs another backend on KV caches with a window. See `drafttree.models.base.PackedBackend` for the protocol.

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

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        most = self.window.rows + self.window.slack + LONGEST_PASS
        cache = self._inner.new_cache(batch, min(capacity, most))
        cache.window = self.window
        return cache

    def forward(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        last_only: bool = False,
        hidden_layers: tuple[int, ...] = (),
    ) -> Output:
        run = self._inner.forward
        return run(cache, tokens, positions, visible, last_only=last_only, hidden_layers=hidden_layers)

    @property
    def shares_passes(self) -> bool:
        return shares_passes(self._inner)

    def forward_packed(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        return forward_packed(self._inner, segments, hidden_layers)
