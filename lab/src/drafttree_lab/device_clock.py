"""Times of calls on a CUDA device, without the time that launching them takes the host."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from drafttree.core.errors import ConfigError

Call = Callable[[], object]

COLD = 3
"""Bytes that calls read in turn before they read the same again, in sizes of the cache."""
FEWEST_CALLS = 16
"""Calls of a graph at least, so that the launch of the graph does not count."""
REPLAYS = 7


class Timing(NamedTuple):
    """Seconds of one call, over the replays of a graph.

    Attributes:
        seconds: the median.
        low: the least.
        high: the most.
    """

    seconds: float
    low: float
    high: float


class DeviceClock(Protocol):
    """Times calls on a device.

    Attributes:
        device: the device.
        cache_bytes: size of its last cache.
    """

    device: torch.device
    cache_bytes: int

    def time(self, calls: Sequence[Call]) -> Timing:
        """Time calls of one kind, which run in turn; what they read together must not fit in the cache."""
        ...


class CudaClock:
    """Times calls by replays of a CUDA graph between two events. See `DeviceClock`.

    Args:
        device: a CUDA device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cache_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)

    def time(self, calls: Sequence[Call]) -> Timing:
        rounds = math.ceil(FEWEST_CALLS / len(calls))
        with torch.cuda.device(self.device):
            graph = self._record(calls, rounds)
            seconds = sorted(self._replay(graph) / (rounds * len(calls)) for _ in range(REPLAYS + 1))
        return Timing(statistics.median(seconds), seconds[0], seconds[-1])

    def _record(self, calls: Sequence[Call], rounds: int) -> "torch.cuda.CUDAGraph":
        """A graph of the calls, each of which ran before, so that nothing is compiled while it is captured."""
        stream: Any = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(stream):
            for call in calls:
                call()
            with torch.cuda.graph(graph, stream=stream):
                for call in [*calls] * rounds:
                    call()
        torch.cuda.current_stream().wait_stream(stream)
        graph.replay()  # the first launch of a graph also uploads it
        return graph

    def _replay(self, graph: "torch.cuda.CUDAGraph") -> float:
        """Seconds of a replay on the device."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3


def open_clock(device: torch.device, command: str) -> DeviceClock:
    """The clock of a CUDA device.

    Raises:
        ConfigError: the device is another one.
    """
    if device.type != "cuda":
        found = "torch sees no CUDA device" if not torch.cuda.is_available() else f"--device is {device}"
        raise ConfigError(f"{command} measures kernels on CUDA, and {found}; run it where there is one")
    return CudaClock(device)


def copies(item_bytes: int, clock: DeviceClock) -> int:
    """How many copies of something must be read in turn so that none is found in the cache."""
    return max(math.ceil(COLD * clock.cache_bytes / item_bytes), 1)
