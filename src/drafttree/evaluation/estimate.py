import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

NORMAL = statistics.NormalDist().inv_cdf(0.975)
"""Half the width of a 95 % interval, in standard deviations."""


@dataclass(frozen=True)
class Estimate:
    """A mean over samples and the half-width of its 95 % confidence interval by Student's t."""

    mean: float
    margin: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """Mean and confidence interval of independent samples; the interval of a single one is infinite."""
        if len(values) < 2:
            return cls(statistics.fmean(values), math.inf)
        spread = statistics.stdev(values) / math.sqrt(len(values))
        return cls(statistics.fmean(values), student_t(len(values) - 1) * spread)

    @classmethod
    def of_gain(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Estimate":
        """The relative gain of one mean over another, from a pair of values per sample."""
        base = statistics.fmean(theirs)
        gain = statistics.fmean(ours) / base - 1
        rest = cls.of([mine - (1 + gain) * other for mine, other in zip(ours, theirs, strict=True)])
        return cls(gain, rest.margin / base)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + self.margin


@dataclass(frozen=True)
class RatioEstimate:
    """A ratio over turns: the geometric mean, and its 95 % interval by Student's t on the logarithms.

    Attributes:
        mean: the geometric mean over the turns.
        low: the lower end of the interval; None of a single turn, which tells nothing of the spread.
        high: the upper end of the interval; None of a single turn.
    """

    mean: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, ours: Sequence[float], theirs: Sequence[float]) -> "RatioEstimate":
        """The ratio of two figures above 0, from a pair of values per turn."""
        found = Estimate.of([math.log(mine / other) for mine, other in zip(ours, theirs, strict=True)])
        if math.isinf(found.margin):
            return cls(math.exp(found.mean))
        return cls(*(math.exp(value) for value in (found.mean, found.mean - found.margin, found.high)))


def student_t(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, within 1 % from 3 degrees of freedom on (Abramowitz and Stegun 26.7.5)."""
    if freedom < 3:
        return (12.706, 4.303)[freedom - 1]
    z = NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
