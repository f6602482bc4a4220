"""A line from costs that were expected to costs that are measured, which follows the latest ones."""

MEMORY = 32.0
"""Measurements after which one counts 1/e."""
SPREAD, WEIGHT = 0.25, 4.0
"""Until sizes differ by more than this share, over more measurements than this, costs are taken to be proportional."""
ENOUGH = 0.25
"""The share of that spread from which on a further row's cost is known well enough not to try other sizes."""
SETTLED, OUTLIER = 4.0, 1.5
"""Behind so many measurements, one counts as this multiple of what was to be expected of it at most: what else the
machine was busy with for a moment must not decide for many rounds."""
LEAST_SLOPE, MOST_SLOPE = 0.25, 4.0
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
        if self._weight >= SETTLED:
            measured = min(measured, OUTLIER * self.at(expected))
        kept = 1 - 1 / MEMORY
        self._weight = kept * self._weight + 1
        self._expected = kept * self._expected + expected
        self._measured = kept * self._measured + measured
        self._square = kept * self._square + expected * expected
        self._product = kept * self._product + expected * measured

    @property
    def is_informed(self) -> bool:
        """Whether sizes differed enough lately to tell what a further row costs."""
        if not self._weight:
            return False
        return self._spread > ENOUGH * self._prior

    def at(self, expected: float) -> float:
        """The cost to be measured where this one is expected; what is expected before anything was measured."""
        if not self._weight:
            return expected
        middle, level = self._expected / self._weight, self._measured / self._weight
        line = level + self._slope(middle, level) * (expected - middle)
        return max(line, LEAST_SLOPE * expected * level / middle)

    def _slope(self, middle: float, level: float) -> float:
        proportional, together = level / middle, self._product - self._weight * middle * level
        slope = (together + self._prior * proportional) / (self._spread + self._prior)
        return min(max(slope, LEAST_SLOPE * proportional), MOST_SLOPE * proportional)

    @property
    def _prior(self) -> float:
        """The spread that the line through zero stands for."""
        return WEIGHT * (SPREAD * self._expected / self._weight) ** 2

    @property
    def _spread(self) -> float:
        """The sum of squared distances of the sizes from their mean."""
        return self._square - self._expected**2 / self._weight
