"""Lets requests into the engine, or refuses them where too many wait or the server is shutting down."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from drafttree.engine.batching import Engine, Handle
from drafttree.engine.prompt import Prompt
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.metrics import ServerMetrics
from drafttree.interfaces.server.settings import ServerSettings

RETRY_AFTER = 1
"""Seconds after which a request that was refused may come again."""

_request: ContextVar[ExitStack | None] = ContextVar("request", default=None)
"""What is to be done when the present request has been answered."""


class Admission:
    """Counts the texts of a server.

    Args:
        engine: writes them.
        settings: how many may wait, and how long each may take.
        metrics: are told of every text.

    Attributes:
        draining: whether no more texts are let in.
    """

    def __init__(self, engine: Engine, settings: ServerSettings, metrics: ServerMetrics) -> None:
        self._engine, self._settings, self._metrics = engine, settings, metrics
        self._handles: set[Handle] = set()
        self._submitting = self._answering = 0
        self.draining = self._ending = False

    @property
    def open(self) -> int:
        """Texts that were let in and have not ended; any thread may ask."""
        self._handles.difference_update([handle for handle in tuple(self._handles) if handle.done])
        return len(self._handles) + self._submitting

    @property
    def busy(self) -> bool:
        """Whether any text has not ended, or is still on its way to a client."""
        return bool(self._answering or self.open)

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request of a client: texts that are submitted inside of it end with it."""
        with ExitStack() as ends:
            token = _request.set(ends)
            try:
                yield
            finally:
                _request.reset(token)

    async def submit(self, prompt: Prompt, **options: Any) -> Handle:
        """Submit a text; reading its prompt and compiling its grammar hold up nobody.

        Args:
            prompt: as for `Engine.submit`.
            **options: likewise.

        Raises:
            ServerError: too many texts wait (429), or the server is shutting down (503).
            DraftTreeError: as for `Engine.submit`.
        """
        self.check()
        begun = time.perf_counter()
        self._submitting += 1
        submitting = asyncio.ensure_future(asyncio.to_thread(self._engine.submit, prompt, **options))
        submitting.add_done_callback(self._count)
        try:
            handle = await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(_cancel)
            raise
        self._metrics.watch(handle, begun)
        self._end_in_time(handle)
        return handle

    def check(self) -> None:
        """Refuse a text that cannot be taken now.

        Raises:
            ServerError: as for `submit`.
        """
        again = {"Retry-After": str(RETRY_AFTER)}
        if self.draining:
            raise ServerError(503, "the server is shutting down", code="shutting_down", headers=again)
        limit = self._settings.max_batch + self._settings.max_queue
        if self.open >= limit:
            message = f"{self.open} texts are running or waiting, which is the limit; try again later"
            raise ServerError(429, message, code="queue_full", headers=again)

    def cancel_all(self) -> None:
        """End all texts where they are, those that are being submitted too."""
        self._ending = True
        for handle in self._handles:
            handle.cancel()

    def _count(self, submitting: "asyncio.Future[Handle]") -> None:
        self._submitting -= 1
        if submitting.cancelled() or submitting.exception():
            return
        self._handles.add(submitting.result())
        if self._ending:
            submitting.result().cancel()

    def _end_in_time(self, handle: Handle) -> None:
        """End a text with its request, and when its time is over."""
        ends = _request.get()
        if ends is None:
            return
        self._answering += 1
        ends.callback(self._answered)
        ends.callback(handle.cancel)
        if self._settings.timeout is not None:
            timer = asyncio.get_running_loop().call_later(self._settings.timeout, handle.cancel, "length")
            ends.callback(timer.cancel)

    def _answered(self) -> None:
        self._answering -= 1


def _cancel(submitting: "asyncio.Future[Handle]") -> None:
    """Cancel a text that nobody waited for."""
    if not submitting.cancelled() and not submitting.exception():
        submitting.result().cancel()
