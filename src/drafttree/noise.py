"""The randomness of one sequence: named streams that are pure functions of seed and position."""

import torch
from torch import Tensor

from drafttree.distributions import gumbel

BLOCK = 2**18


class Noise:
    """Gumbel noise of every position of a sequence, made in blocks and kept while it is near.

    Args:
        seed: of the sequence.
        vocab: numbers per position.
        device: where the numbers are used.
    """

    def __init__(self, seed: int, vocab: int, device: torch.device) -> None:
        self._seed, self._vocab, self._device = seed, vocab, device
        self._span = max(1, BLOCK // vocab)
        self._first = 0
        self._rows = torch.zeros(0, vocab, device=device)

    def gumbel(self, position: int, count: int) -> Tensor:
        """Float32 `[count, vocab]`: the noise of `count` positions from `position` on."""
        if position < self._first or position + count > self._first + len(self._rows):
            positions = torch.arange(position, position + max(count, self._span), device=self._device)
            self._first, self._rows = position, gumbel(self._seed, positions, self._vocab)
        return self._rows[position - self._first :][:count]
