"""Shuffled windows of the token stream."""

import numpy as np
import torch
from torch import Tensor


class Windows:
    """An endless supply of (inputs, labels), read on exactly where a saved run stopped.

    Every window length has its own position, (epoch, cursor), so that changing the length skips no text.
    """

    def __init__(self, stream: np.ndarray, positions: dict[int, tuple[int, int]] | None = None):
        self.stream, self.positions = stream, dict(positions or {})

    def take(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """The next `count` windows of `length` tokens; a new epoch begins when they run out."""
        epoch, cursor = self.positions.get(length, (0, 0))
        starts = self._starts(epoch, length)
        if cursor + count > len(starts):
            epoch, cursor, starts = epoch + 1, 0, self._starts(epoch + 1, length)
        self.positions[length] = (epoch, cursor + count)
        return self._rows(starts[cursor : cursor + count], length)

    def _rows(self, chosen: np.ndarray, length: int) -> tuple[Tensor, Tensor]:
        rows = torch.from_numpy(np.stack([self.stream[s : s + length + 1] for s in chosen]).astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    def _starts(self, epoch: int, length: int) -> np.ndarray:
        """The windows of an epoch in their order, laid from a random offset: no token is always at a window's start."""
        random = np.random.default_rng((epoch, length))
        offset = int(random.integers(length))
        return random.permutation(np.arange(offset, len(self.stream) - length - 1, length))
