"""A number with its 95 % interval; the name of each constructor says by which method."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

Run = tuple[float, float]
"""Tokens and seconds."""


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval over samples; a single sample tells nothing of the spread and has no ends."""

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
        """Half the width of the interval; infinite if it has no ends."""
        return math.inf if self.low is None or self.high is None else (self.high - self.low) / 2

    @classmethod
    def by_student(cls, values: Sequence[float]) -> "Interval":
        """The mean of independent samples, by Student's t."""
        samples = np.asarray(values, float)
        mean = float(samples.mean())
        count = len(samples)
        if count < 2:
            return cls(mean)
        reach = float(stdtrit(count - 1, 0.975) * samples.std(ddof=1)) / math.sqrt(count)
        return cls(mean, mean - reach, mean + reach)

    @classmethod
    def of_speeds_by_jackknife(cls, ours: Sequence[Run], theirs: Sequence[Run]) -> "Interval":
        """The ratio of two speeds, each of all tokens over all seconds, from a pair of runs per sample.

        The interval is Student's t on the logarithm of the ratio, with the standard error of the jackknife, which
        leaves out each sample in turn (Tukey 1958). The mean of the samples' own ratios would count a short text as
        much as a long one, and would differ from the quotient of the two speeds.
        """
        runs = np.asarray([ours, theirs], float)  # [2, samples, tokens and seconds]
        totals = runs.sum(axis=1, keepdims=True)
        count = runs.shape[1]
        centre = float(_log_ratio(totals)[0])
        if count < 2:
            return cls(math.exp(centre))
        log_ratios = _log_ratio(totals - runs)
        error = math.sqrt((count - 1) / count * np.square(log_ratios - log_ratios.mean()).sum())
        reach = float(stdtrit(count - 1, 0.975)) * error
        return cls(*(math.exp(end) for end in (centre, centre - reach, centre + reach)))

    @classmethod
    def of_gain_by_student(cls, ours: Sequence[float], theirs: Sequence[float]) -> "Interval":
        """The relative gain of one mean over another, from a pair of values per sample.

        The interval is Student's t on the residuals `ours - ratio * theirs`, relative to the mean of `theirs`.
        """
        base = np.mean(theirs)
        our_values = np.asarray(ours, float)
        ratio = float(our_values.mean() / base)
        residual = cls.by_student(((our_values - ratio * np.asarray(theirs, float)) / base).tolist())
        return cls(ratio - 1, *(None if end is None else ratio - 1 + end for end in (residual.low, residual.high)))


def total_speed(runs: Iterable[Run]) -> float:
    """All tokens over all seconds."""
    tokens, seconds = map(sum, zip(*runs, strict=True))
    return tokens / seconds


def _log_ratio(runs: np.ndarray) -> np.ndarray:
    """The logarithm of the ratio of two speeds, `[samples]`, from `[2, samples, tokens and seconds]`."""
    our_speeds, their_speeds = runs[..., 0] / runs[..., 1]
    return np.log(our_speeds / their_speeds)
