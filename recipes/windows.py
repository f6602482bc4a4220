"""Takes shuffled windows of tokens from the training text."""

import numpy as np
import torch
from torch import Tensor


class Windows:
    """An endless supply of (inputs, labels), which a resumed run continues exactly where the saved one stopped.

    Every window length has its own position (epoch, windows taken in it), so changing the length skips no text.
    """

    def __init__(self, stream: np.ndarray, positions: dict[int, tuple[int, int]] | None = None):
        self.stream, self.positions = stream, dict(positions or {})

    def take(self, count: int, length: int) -> tuple[Tensor, Tensor]:
        """Return (inputs, labels) of the next `count` windows, int64 `[count, length]` each; begins an epoch if due."""
        epoch, cursor = self.positions.get(length, (0, 0))
        if cursor + count > len(self._starts(epoch, length)):
            epoch, cursor = epoch + 1, 0
        self.positions[length] = (epoch, cursor + count)
        chosen = self._chosen(epoch, cursor, count, length)
        rows = torch.from_numpy(np.stack([self.stream[s : s + length + 1] for s in chosen]).astype(np.int64))
        return rows[:, :-1], rows[:, 1:]

    def _chosen(self, epoch: int, cursor: int, count: int, length: int) -> np.ndarray:
        """Start indices of the next windows."""
        return self._starts(epoch, length)[cursor : cursor + count]

    def _starts(self, epoch: int, length: int) -> np.ndarray:
        """Start indices of an epoch's windows in order; the random offset varies which tokens begin a window."""
        random = np.random.default_rng((epoch, length))
        offset = int(random.integers(length))
        return random.permutation(np.arange(offset, len(self.stream) - length - 1, length))
