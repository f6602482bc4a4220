"""A number with its 95 % interval; each constructor is named after its method."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

Run = tuple[float, float]
"""Tokens and seconds of one or more texts."""


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval over samples; the ends are None for a single sample, which has no spread."""

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
        half_width = float(stdtrit(count - 1, 0.975) * samples.std(ddof=1)) / math.sqrt(count)
        return cls(mean, mean - half_width, mean + half_width)

    @classmethod
    def of_speeds_by_jackknife(cls, runs: Sequence[Run], base_runs: Sequence[Run]) -> "Interval":
        """The ratio of two speeds, each of all tokens over all seconds, from a pair of runs per sample.

        The interval is Student's t on the logarithm of the ratio. Its standard error is that of the jackknife, which
        leaves out each sample in turn (Tukey 1958). The mean of the samples' ratios is not used: it would count a short
        text as much as a long one, and would not be the quotient of the two speeds.
        """
        run_pairs = np.asarray([runs, base_runs], float)  # [2, samples, tokens and seconds]
        totals = run_pairs.sum(axis=1, keepdims=True)
        count = run_pairs.shape[1]
        centre = float(_log_ratio(totals)[0])
        if count < 2:
            return cls(math.exp(centre))
        log_ratios = _log_ratio(totals - run_pairs)
        error = math.sqrt((count - 1) / count * np.square(log_ratios - log_ratios.mean()).sum())
        half_width = float(stdtrit(count - 1, 0.975)) * error
        return cls(*(math.exp(end) for end in (centre, centre - half_width, centre + half_width)))

    @classmethod
    def of_gain_by_student(cls, values: Sequence[float], base_values: Sequence[float]) -> "Interval":
        """The relative gain of one mean over another, from a pair of values per sample.

        The interval is Student's t on the residuals `values - ratio * base_values`, over the mean of `base_values`.
        """
        base_mean = np.mean(base_values)
        samples = np.asarray(values, float)
        ratio = float(samples.mean() / base_mean)
        residual = cls.by_student(((samples - ratio * np.asarray(base_values, float)) / base_mean).tolist())
        return cls(ratio - 1, *(None if end is None else ratio - 1 + end for end in (residual.low, residual.high)))


def total_speed(runs: Iterable[Run]) -> float:
    """All tokens over all seconds."""
    tokens, seconds = map(sum, zip(*runs, strict=True))
    return tokens / seconds


def _log_ratio(run_pairs: np.ndarray) -> np.ndarray:
    """The logarithm of the ratio of two speeds, `[samples]`, from `[2, samples, tokens and seconds]`."""
    speeds, base_speeds = run_pairs[..., 0] / run_pairs[..., 1]
    return np.log(speeds / base_speeds)
