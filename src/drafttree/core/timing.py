"""Times forward passes: with the host's clock on a CPU, with events of the stream on CUDA."""

import time

import torch


class PassTimer:
    """Sums the time spent inside `with` blocks, which do not nest.

    CUDA kernels run after the host has queued them, so on CUDA a block is timed by two events of the stream. Reading
    `seconds` waits for the last event; entering and leaving blocks never waits.

    Args:
        device: the device of the passes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._seconds = self._began = 0.0
        self._events: list[torch.cuda.Event] = []

    @property
    def seconds(self) -> float:
        """Seconds spent in all blocks so far."""
        while self._events:
            began, ended, *self._events = self._events
            ended.synchronize()
            self._seconds += began.elapsed_time(ended) / 1e3
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
            self._seconds += time.perf_counter() - self._began

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
