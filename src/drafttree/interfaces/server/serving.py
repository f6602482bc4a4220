"""A model that is served: its settings, the admission of requests to its engine, and what routes share."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request

from drafttree.core.counts import MAX_BATCH
from drafttree.engine.batching import Engine, Handle
from drafttree.engine.decoder import Decoder
from drafttree.engine.pass_recording import record_passes
from drafttree.engine.prompt import Prompt
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.metrics import ServerMetrics


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        model_name: the name by which requests call the model, and `/v1/models` lists it.
        api_key: the key that every request to `/v1` must carry; None for none.
        cors: origins whose pages may call the server from a browser.
        max_batch: the number of requests that may run at once.
        max_queue: the number of requests that may wait; one more is refused.
        timeout: seconds after which a request ends where it is; None for no end.
        max_body_bytes: the largest body of a request, in bytes.
        grace: seconds from the signal that ends the server to its end.
        allowed_hosts: the hosts, without port, that requests may name as this server's; "*" for any.
    """

    model_name: str
    api_key: str | None = None
    cors: tuple[str, ...] = ()
    max_batch: int = MAX_BATCH
    max_queue: int = 256
    timeout: float | None = None
    max_body_bytes: int = 4 << 20
    grace: float = 10.0
    allowed_hosts: tuple[str, ...] = ("*",)

    @property
    def max_texts(self) -> int:
        """The number of texts that may run or wait."""
        return self.max_batch + self.max_queue


RETRY_AFTER = 1
"""Seconds after which a request that was refused may come again."""
MAX_UNREAD = 64
"""Rounds of a text that wait for its client; then the text waits."""

_request: ContextVar[ExitStack | None] = ContextVar("request", default=None)
"""What is to be done when the present request has been answered."""


class Admission:
    """Counts the texts of a server.

    Args:
        engine: writes the texts.
        settings: say how many texts may run and wait, and how long each may take.
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
            prompt: text, token ids or messages, as `Engine.submit` takes them.
            **options: the options of `Engine.submit`.

        Raises:
            ServerError: too many texts wait (429), or the server is shutting down (503).
            DraftTreeError: as for `Engine.submit`.
        """
        self.check()
        begun = time.perf_counter()
        self._submitting += 1
        submit = partial(self._engine.submit, prompt, max_unread=MAX_UNREAD, **options)
        submitting = asyncio.ensure_future(asyncio.to_thread(submit))
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
        if self.open >= self._settings.max_texts:
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


class ServingContext:
    """A model that is served; its engine begins with it.

    Args:
        decoder: the decoder of the served model.
        settings: what the server is told when it starts.

    Attributes:
        engine: writes the texts.
        metrics: counts the texts and takes their times.
        admission: lets requests into the engine.
    """

    def __init__(self, decoder: Decoder, settings: ServerSettings) -> None:
        self.decoder, self.settings = decoder, settings
        self.engine = Engine(decoder, max_batch=settings.max_batch)
        record_passes(decoder, settings.max_batch, self.engine.memory.rows)
        self.metrics = ServerMetrics(self.engine, settings.model_name)
        self.admission = Admission(self.engine, settings, self.metrics)

    @property
    def model_name(self) -> str:
        """The name by which requests call the model."""
        return self.settings.model_name

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model than the served one.

        Raises:
            ServerError: names both.
        """
        if name is not None and name != self.model_name:
            message = f"the model {name!r} is not served; {self.model_name!r} is"
            raise ServerError(404, message, param="model", code="model_not_found")


def _find(request: Request) -> ServingContext:
    return request.app.state.serving


Serving = Annotated[ServingContext, Depends(_find)]
"""A parameter of a route."""
