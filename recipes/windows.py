"""Shuffled windows of the token stream."""

import numpy as np
import torch
from torch import Tensor


class Windows:
    """An endless supply of (inputs, labels), read on exactly where a saved run stopped.

    Every window length has its own position, (epoch, windows taken in it), so that changing the length skips no text.
    """

    def __init__(self, stream: np.ndarray, positions: dict[int, tuple[int, int]] | None = None):
        self.stream, self.positions = stream, dict(positions or {})

    def take(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """The next `count` windows of `length` tokens; a new epoch begins when they run out."""
        epoch, cursor = self.positions.get(length, (0, 0))
        if cursor + count > len(self._starts(epoch, length)):
            epoch, cursor = epoch + 1, 0
        self.positions[length] = (epoch, cursor + count)
        chosen = self._chosen(epoch, cursor, count, length)
        rows = torch.from_numpy(np.stack([self.stream[s : s + length + 1] for s in chosen]).astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    def _chosen(self, epoch: int, cursor: int, count: int, length: int) -> np.ndarray:
        """Where the next windows start."""
        return self._starts(epoch, length)[cursor : cursor + count]

    def _starts(self, epoch: int, length: int) -> np.ndarray:
        """The windows of an epoch in their order, laid from a random offset: no token is always at a window's start."""
        random = np.random.default_rng((epoch, length))
        offset = int(random.integers(length))
        return random.permutation(np.arange(offset, len(self.stream) - length - 1, length))
