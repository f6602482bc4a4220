"""The request that is being answered: whose it is, when its time is over, and what ends with it."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

_current: ContextVar["OpenRequest | None"] = ContextVar("request", default=None)


class OpenRequest:
    """A request of a client from its arrival on.

    Args:
        client: the address of who has sent it.
        seconds: the time it has; None for no end.

    Attributes:
        ends: what is to be done when it has been answered.
    """

    def __init__(self, client: str, seconds: float | None) -> None:
        self.client, self.seconds = client, seconds
        self.ends = ExitStack()
        self._arrived = time.monotonic()

    @property
    def seconds_left(self) -> float | None:
        """The time that is left, at least 0; None for no end."""
        if self.seconds is None:
            return None
        return max(0.0, self._arrived + self.seconds - time.monotonic())

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Make this the request that is being answered."""
        with self.ends:
            token = _current.set(self)
            try:
                yield
            finally:
                _current.reset(token)


def open_request() -> OpenRequest | None:
    """The request that is being answered, None outside of one."""
    return _current.get()
