"""How long work takes where it is done: on the host's clock, or between events of a CUDA stream."""

import time

import torch


class PassTimer:
    """Sums the time spent inside `with` blocks, which do not nest.

    CUDA work goes on after the host has queued it, so there a block is the time between two events of the stream. They
    are compared when `seconds` is read, which waits for the last of them; between blocks nothing waits.

    Args:
        device: where the work is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._seconds = self._began = 0.0
        self._events: list[torch.cuda.Event] = []

    @property
    def seconds(self) -> float:
        """Time in all blocks so far."""
        for began, ended in zip(self._events[::2], self._events[1::2], strict=True):
            ended.synchronize()
            self._seconds += began.elapsed_time(ended) / 1e3
        self._events.clear()
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
