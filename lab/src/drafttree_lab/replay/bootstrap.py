"""Intervals of ratios over prompts, by resampling the prompts of each set."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

RESAMPLES = 2000
Fraction = tuple[float, float]
"""What one prompt adds to the numerator and the denominator of a metric."""


class Bootstrap:
    """A paired bootstrap: every method is judged on the same resampled prompts (Efron 1979, percentile intervals).

    Args:
        sizes: prompts by set.
        seed: the seed of the resampling, so that the same cells give the same intervals.
    """

    def __init__(self, sizes: Mapping[str, int], seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._weights = {name: _weights(size, generator) for name, size in sizes.items()}

    def mean(self, samples: Iterable[tuple[str, Sequence[Fraction]]]) -> Tensor:
        """The mean over groups of a metric, (1 + `RESAMPLES`,) float64: of all prompts first, then of each resample.

        Args:
            samples: samples for every group the set of its prompts, and a fraction for each of them.
        """
        values = []
        for name, fractions in samples:
            above, below = torch.tensor(fractions, dtype=torch.float64).unbind(1)
            weights = self._weights[name]
            values.append((weights @ above) / (weights @ below))
        return torch.stack(values).mean(0)


def interval(values: Tensor) -> tuple[float, float]:
    """The 95 % interval of what `Bootstrap.mean` gives, or of what was computed of it."""
    resampled = values[1:]
    low, high = torch.quantile(resampled[~resampled.isnan()], torch.tensor([0.025, 0.975], dtype=values.dtype))
    return low.item(), high.item()


def _weights(size: int, generator: torch.Generator) -> Tensor:
    """How often each prompt is drawn, (1 + `RESAMPLES`, size): once each at first, then by chance."""
    drawn = torch.randint(size, (RESAMPLES, size), generator=generator)
    counts = torch.zeros(RESAMPLES, size, dtype=torch.float64).scatter_add_(1, drawn, torch.ones_like(drawn).double())
    return torch.cat((torch.ones(1, size, dtype=torch.float64), counts))
