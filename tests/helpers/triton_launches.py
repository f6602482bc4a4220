"""Launches of Triton's kernels in its interpreter: counted, or recorded with the operations of torch between them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

import helpers.triton_interpreter  # noqa: F401
from helpers.replays import Operations, Recording


@contextmanager
def noticed_launches(notice: Callable[[str, Callable[[], object]], None]) -> Iterator[None]:
    """Context manager: `notice` gets each launch's kernel by name, and a function that runs it; it may or may not."""
    original_run = InterpretedFunction.run

    def launch(self: Any, *args: Any, **kwargs: Any) -> None:
        with _disable_current_modes():  # what the interpreter does with tensors is no operation of the pass
            original_run(self, *args, **kwargs)

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        notice(self.__name__, partial(launch, self, *args, **kwargs))

    InterpretedFunction.run = run
    try:
        yield
    finally:
        InterpretedFunction.run = original_run


def launches_of(call: Callable[[], object]) -> list[str]:
    """The kernels that a call launches, which do not run."""
    launches: list[str] = []
    with noticed_launches(lambda name, _: launches.append(name)):
        call()
    return launches


class Launches(Operations):
    """Repeats launches and operations of the first time on the same memory, as a graph does. See `Operations`."""

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        with super().recording() as recording:

            def notice(_: str, launch: Callable[[], object]) -> None:
                launch()
                recording.calls.append((launch, (), {}, [None]))

            with noticed_launches(notice):
                yield recording
