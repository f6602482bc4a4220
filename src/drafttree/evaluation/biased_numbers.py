"""Random numbers by which a verifier accepts too often, to measure what a certificate sees of it."""

from typing import Any

from drafttree.core.lazy import Tensor
from drafttree.core.randomness import Randomness
from drafttree.core.tree import Proposal


class BiasedNumbers(Randomness):
    """Numbers by which a probability to accept is larger than was asked for, up to 1; all else is as it was.

    Args:
        numbers: the numbers.
        bias: by which share of a probability it is larger.
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
        self, probs: Tensor, counts: Tensor, most: int, proposal: Proposal, depth: int
    ) -> tuple[Tensor, Tensor]:
        return self._numbers.children(probs, counts, most, proposal, depth)
