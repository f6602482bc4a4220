"""Counts the work of a round: torch operations, and calls of drafttree's own functions."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

import drafttree
from drafttree.engine.decoder import Decoder, Prompt

PACKAGE = str(Path(drafttree.__file__).parent)


class RoundWork(NamedTuple):
    """Means over the rounds of a text without the first.

    Attributes:
        operations: operations that torch dispatched, including those of both models.
        calls: calls of drafttree's own functions.
    """

    operations: float
    calls: float


class _Operations(TorchDispatchMode):
    """Counts torch operations while its context lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Calls:
    """Counts calls of drafttree's functions while the context `counting` lasts."""

    def __init__(self) -> None:
        self.count = 0

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        self.count += event == "call" and file.startswith(PACKAGE) and file != __file__

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count in this thread."""
        previous_profiler = sys.getprofile()
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(previous_profiler)


def count_work(decoder: Decoder, prompt: Prompt, **options: Any) -> RoundWork:
    """Count the work of the rounds of a text; arguments as for `Decoder.new_request`."""
    request = decoder.new_request(prompt, **options)
    decoder.step(request)
    operations = _Operations()
    calls = _Calls()
    while not request.text.finish_reason:
        with operations, calls.counting():
            decoder.step(request)
    rounds = max(len(request.metrics.rounds) - 1, 1)
    return RoundWork(operations.count / rounds, calls.count / rounds)
