"""Random numbers that make a verifier accept too often, to measure whether a certificate notices."""

from typing import Any

from drafttree.core.lazy import Tensor
from drafttree.core.randomness import Randomness
from drafttree.core.tree import Proposal


class BiasedNumbers(Randomness):
    """Random numbers that raise every probability to accept, up to 1; all draws are unchanged.

    Args:
        numbers: the unbiased numbers.
        bias: the relative growth of the probabilities.
    """

    def __init__(self, numbers: Randomness, bias: float) -> None:
        self._numbers = numbers
        self._bias = bias

    def at(self, position: int) -> "BiasedNumbers":
        return BiasedNumbers(self._numbers.at(position), self._bias)

    def gumbel(self, depth: int) -> Tensor:
        return self._numbers.gumbel(depth)

    def accept(self, probability: Any) -> bool:
        return self._numbers.accept(float(probability) * (1 + self._bias))

    def draw(self, distribution: Tensor) -> int:
        return self._numbers.draw(distribution)

    def children(
        self, probs: Tensor, counts: Tensor, max_children: int, proposal: Proposal, depth: int
    ) -> tuple[Tensor, Tensor]:
        return self._numbers.children(probs, counts, max_children, proposal, depth)
