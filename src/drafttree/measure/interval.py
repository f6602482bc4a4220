"""A number with its 95 % interval, the method of which is in the name of what makes it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit


@dataclass(frozen=True)
class Interval:
    """A mean over samples with its 95 % interval; a single sample, which tells nothing of the spread, has no ends."""

    mean: float
    low: float | None = None
    high: float | None = None

    def __format__(self, form: str) -> str:
        ends = "" if self.low is None else f" [{self.low:{form}}, {self.high:{form}}]"
        return f"{self.mean:{form}}{ends}"

    def __str__(self) -> str:
        return f"{self:.2f}"

    @property
    def margin(self) -> float:
        """Half the width, infinite without ends."""
        return math.inf if self.low is None or self.high is None else (self.high - self.low) / 2

    @classmethod
    def by_student(cls, values: Sequence[float]) -> "Interval":
        """The mean of independent samples, by Student's t."""
        found = np.asarray(values, float)
        mean, count = float(found.mean()), len(found)
        if count < 2:
            return cls(mean)
        reach = float(stdtrit(count - 1, 0.975) * found.std(ddof=1)) / math.sqrt(count)
        return cls(mean, mean - reach, mean + reach)

    @classmethod
    def of_ratio_by_student(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Interval":
        """The geometric mean of the ratios of two figures above 0, by sample; Student's t on their logarithms."""
        logs = cls.by_student(np.log(np.asarray(ours, float) / np.asarray(theirs, float)).tolist())
        return cls(math.exp(logs.mean), *(None if end is None else math.exp(end) for end in (logs.low, logs.high)))

    @classmethod
    def of_gain_by_student(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Interval":
        """The relative gain of one mean over another, from a pair of values per sample.

        Student's t on what the ratio of the means leaves of each pair, in the mean of the others.
        """
        base, mine = np.mean(theirs), np.asarray(ours, float)
        ratio = float(mine.mean() / base)
        rest = cls.by_student(((mine - ratio * np.asarray(theirs, float)) / base).tolist())
        return cls(ratio - 1, *(None if end is None else ratio - 1 + end for end in (rest.low, rest.high)))
