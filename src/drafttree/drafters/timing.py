"""Times forward passes: by the host's clock on a CPU, by events of the stream on CUDA."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch


class PassTimer:
    """Sums the time spent inside `with` blocks, which do not nest.

    CUDA kernels run after the host has queued them, so on CUDA two events of the stream time a block. Only reading
    `seconds` waits for the device.

    Args:
        device: the device of the passes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._seconds = self._began = self._latest = 0.0
        self._events: list[torch.cuda.Event] = []

    @property
    def seconds(self) -> float:
        """Seconds spent in all blocks so far."""
        while self._events:
            start_event, end_event, *self._events = self._events
            end_event.synchronize()
            self._seconds += start_event.elapsed_time(end_event) / 1e3
        return self._seconds

    def __enter__(self) -> "PassTimer":
        if self._cuda:
            self._mark()
        else:
            self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        if self._cuda:
            self._mark()
        else:
            self._latest = time.perf_counter() - self._began
            self._seconds += self._latest

    def add_latest(self, other_timer: "PassTimer") -> None:
        """Add the latest block of another timer of the same device.

        On CUDA, the other timer's `seconds` must not have been read since that block.
        """
        if self._cuda:
            self._events += other_timer._events[-2:]
        else:
            self._seconds += other_timer._latest

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)


@contextmanager
def time_together(timers: Sequence[PassTimer]) -> Iterator[None]:
    """Context manager: time the block once, and count its whole time in each timer."""
    first_timer, *other_timers = timers
    try:
        with first_timer:
            yield
    finally:
        for timer in other_timers:
            timer.add_latest(first_timer)
