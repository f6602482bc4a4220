"""Counts the seconds of the stages of loading."""

import functools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

logger = logging.getLogger("drafttree")
OTHER = "other"
"""The name of the time outside all stages."""

P = ParamSpec("P")
R = TypeVar("R")


class Stages:
    """Counts seconds by stage. While an inner stage runs, the outer one does not count.

    Attributes:
        seconds: by name, in the order in which they began.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running = [OTHER]
        self._since = time.perf_counter()

    def begin(self, name: str) -> None:
        """Begin a stage."""
        self._count()
        self._running.append(name)

    def end(self) -> None:
        """End the stage that began last."""
        self._count()
        self._running.pop()

    def _count(self) -> None:
        moment = time.perf_counter()
        name = self._running[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + moment - self._since
        self._since = moment


_current: ContextVar[Stages | None] = ContextVar("stages", default=None)


@contextmanager
def counted_stages() -> Iterator[Stages]:
    """Context manager: count the seconds of all stages in the block; a nested block gets the outer `Stages`."""
    if outer_stages := _current.get():
        yield outer_stages
        return
    stages = Stages()
    token = _current.set(stages)
    try:
        yield stages
    finally:
        stages.end()
        _current.reset(token)


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Context manager: count the block's seconds as a stage of loading, if `counted_stages` is active."""
    stages = _current.get()
    if stages is None:
        yield
        return
    stages.begin(name)
    try:
        yield
    finally:
        stages.end()


def tells_stages(load: Callable[P, R]) -> Callable[P, R]:
    """Decorator: a function that loads logs the seconds of its stages."""

    @functools.wraps(load)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        with counted_stages() as stages:
            loaded = load(*args, **kwargs)
        summary = ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.seconds.items() if seconds >= 0.05)
        logger.info("loaded in %.1f s: %s", sum(stages.seconds.values()), summary)
        return loaded

    return told
