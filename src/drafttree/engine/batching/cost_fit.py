"""A line from costs that were expected to costs that are measured, which follows the latest ones."""

MEMORY = 32.0
"""Measurements after which one counts 1/e."""
SPREAD, WEIGHT = 0.25, 4.0
"""Until sizes differ by more than this share, over more measurements than this, costs are taken to be proportional."""
LEAST_SLOPE, MOST_SLOPE = 0.5, 2.0
"""The slope is between these multiples of the proportional one: noise must not make a further row free or endless."""


class CostFit:
    """The line that fits the measured costs best, drawn towards the one through zero.

    Measurements of one size cannot tell a higher price of every row from a price of the pass as such; those of several
    can, and what is chosen by costs is how many rows to add.
    """

    def __init__(self) -> None:
        self._weight = self._expected = self._measured = self._square = self._product = 0.0

    def observe(self, expected: float, measured: float) -> None:
        """Take note of a cost."""
        kept = 1 - 1 / MEMORY
        self._weight = kept * self._weight + 1
        self._expected = kept * self._expected + expected
        self._measured = kept * self._measured + measured
        self._square = kept * self._square + expected * expected
        self._product = kept * self._product + expected * measured

    def at(self, expected: float) -> float:
        """The cost to be measured where this one is expected; what is expected before anything was measured."""
        if not self._weight:
            return expected
        middle, level = self._expected / self._weight, self._measured / self._weight
        return level + self._slope(middle, level) * (expected - middle)

    def _slope(self, middle: float, level: float) -> float:
        proportional, prior = level / middle, WEIGHT * (SPREAD * middle) ** 2
        spread = self._square - self._weight * middle**2
        together = self._product - self._weight * middle * level
        slope = (together + prior * proportional) / (spread + prior)
        return min(max(slope, LEAST_SLOPE * proportional), MOST_SLOPE * proportional)
