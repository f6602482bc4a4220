"""A clock of a device that is not there, for benches of CUDA's kernels."""

from collections.abc import Callable, Sequence

import torch

from drafttree_lab.device_clock import Call, Timing


class StandInClock:
    """Runs calls on the CPU, and gives them the times that it is told. See `DeviceClock`.

    Args:
        seconds: the time of each timing from the results of its calls; by default one millisecond.
        cache_bytes: size of the cache.
    """

    def __init__(self, seconds: Callable[[list[object]], float] = lambda _: 1e-3, cache_bytes: int = 0) -> None:
        self.device = torch.device("cpu")
        self.cache_bytes = cache_bytes
        self.results = list[list[object]]()
        self._seconds = seconds

    def time(self, calls: Sequence[Call]) -> Timing:
        self.results.append([call() for call in calls])
        seconds = self._seconds(self.results[-1])
        return Timing(seconds, seconds, seconds)
