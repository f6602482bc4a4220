"""Requests while they are answered: admission of their texts, their time limits, and clients that disconnect."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drafttree.engine.batching import Engine, Handle
from drafttree.engine.image_prompt import EncodedPrompt
from drafttree.evaluation.audit import Audit
from drafttree.interfaces.server.errors import AGAIN, SHUTTING_DOWN, ServerError, shutting_down
from drafttree.interfaces.server.metrics import ServerMetrics

Found = TypeVar("Found")
open_request: ContextVar["OpenRequest"] = ContextVar("open_request")
"""The request that the current task answers."""


class OpenRequest:
    """A request of a client, from its arrival to its answer.

    Args:
        key: digest of the client's API key; "" if the server asks for none.
        seconds: its time limit; None for no limit.

    Attributes:
        large: whether the body is so large that parsing it would block the event loop.
        ends: callbacks to run once the request has been answered.
        reading: callbacks to run once the body is no longer needed.
    """

    def __init__(self, key: str, seconds: float | None) -> None:
        self.key = key
        self.large = False
        self.ends = ExitStack()
        self.reading = ExitStack()
        self._ends_at = None if seconds is None else time.monotonic() + seconds

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit, at least 0; None for no limit."""
        return None if self._ends_at is None else max(0.0, self._ends_at - time.monotonic())

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Context manager: make this the request of the current task; on exit, run the callbacks."""
        with self.ends, self.reading:
            self.ends.callback(open_request.reset, open_request.set(self))
            yield


async def read_request(function: Callable[[], Found]) -> Found:
    """Call a function that reads the request: in a thread if the request is large, else directly, which is faster."""
    return await asyncio.to_thread(function) if open_request.get().large else function()


MAX_UNREAD = 6
"""The number of rounds that a client has not read at which its text pauses."""


class Admission:
    """Submits texts to an engine within the server's limits, and keeps track of those that have not ended.

    Args:
        engine: the engine.
        metrics: measure every text.
        max_texts: the most texts that may run or wait.
        shares_prefixes: whether texts without key and salt share their prefixes.
        max_texts_per_key: the most texts of one API key that may run or wait; None for no limit.
        audit: observes the rounds of texts whose seed the server draws; None for no audit.

    Attributes:
        draining: whether new texts are refused, because the server shuts down.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: ServerMetrics,
        max_texts: int,
        *,
        shares_prefixes: bool = True,
        max_texts_per_key: int | None = None,
        audit: Audit | None = None,
    ) -> None:
        self._shares_prefixes = shares_prefixes
        self._max_per_key = max_texts_per_key
        self._audit = audit
        self._of_key = Counter[str]()
        self._engine = engine
        self._metrics = metrics
        self._max_texts = max_texts
        self._texts = set[asyncio.Future[Handle]]()
        self._answering = set[Handle]()
        self._preparing = set[asyncio.Timeout]()
        self.draining = False

    @property
    def open(self) -> int:
        """The number of submitted texts that have not ended. Thread-safe."""
        self._texts.difference_update([*filter(_has_ended, tuple(self._texts))])
        return len(self._texts)

    @property
    def most_texts(self) -> int:
        """The most texts of one request."""
        return self._max_per_key if self._max_per_key and open_request.get().key else self._max_texts

    @property
    def busy(self) -> bool:
        """Whether any text is unfinished, or not yet completely sent to its client."""
        return bool(self._answering or self.open)

    @asynccontextmanager
    async def preparing(self) -> AsyncIterator[None]:
        """Context manager: reserve a place for a request whose texts cannot be submitted yet.

        Raises:
            ServerError: as for `submit`, also if the server shuts down meanwhile.
        """
        self.check()
        open_request.get().reading.close()
        deadline = asyncio.timeout(None)
        self._preparing.add(deadline)
        try:
            async with deadline:
                yield
        except TimeoutError:
            self.check()
            raise
        finally:
            self._preparing.discard(deadline)

    def refuse_preparing(self) -> None:
        """End the requests inside `preparing`, because a server that shuts down would refuse their texts."""
        for deadline in self._preparing:
            if not deadline.expired():  # an expired one may not have ended yet
                deadline.reschedule(0)

    async def submit(
        self,
        prompt: EncodedPrompt,
        *,
        group: Hashable | None = None,
        cache_salt: str | None = None,
        to: Callable[..., Handle] | None = None,
        **options: Any,
    ) -> Handle:
        """Submit a text. If it still runs when the current request has been answered, it is cancelled.

        A thread checks the prompt, so the event loop is not blocked. Other arguments are as for `Engine.submit`.

        Args:
            cache_salt: the request's salt; only texts of the same key and salt, or of the same group, share prefixes.
            to: `Engine.submit` of another engine, which then writes the text.

        Raises:
            ServerError: too many texts run or wait, in total or of the key (429), or the server is shutting down (503).
            DraftTreeError: as for `Engine.submit`.
        """
        self.check()
        request_state = open_request.get()
        request_state.reading.close()
        if request_state.key:
            self._of_key[request_state.key] += 1
            request_state.ends.callback(self._of_key.subtract, [request_state.key])
        start_time = time.perf_counter()
        group = object() if group is None else group
        owner = (request_state.key, cache_salt)
        salt = owner if self._shares_prefixes or any(owner) else group
        if self._audit and options.get("seed") is None:
            options.setdefault("observer", self._audit)
        submit = partial(
            to or self._engine.submit, prompt, group=group, cache_salt=salt, max_unread=MAX_UNREAD, **options
        )
        submit_task = asyncio.ensure_future(asyncio.to_thread(submit))
        self._texts.add(submit_task)
        try:
            handle = await asyncio.shield(submit_task)
        except asyncio.CancelledError:
            submit_task.add_done_callback(_cancel)
            raise
        self._metrics.watch(handle, start_time)
        self._answering.add(handle)
        request_state.ends.callback(self._answering.discard, handle)
        request_state.ends.callback(handle.cancel)
        if (seconds_left := request_state.seconds_left) is not None:
            timer = asyncio.get_running_loop().call_later(seconds_left, handle.cancel, "length")
            request_state.ends.callback(timer.cancel)
        return handle

    def check(self) -> None:
        """Refuse a text that cannot be submitted now.

        Raises:
            ServerError: as for `submit`.
        """
        if self.draining:
            raise shutting_down()
        if (text_count := self.open + len(self._preparing)) >= self._max_texts:
            message = f"{text_count} texts are running or waiting, which is the limit; try again later"
            raise ServerError(429, message, code="queue_full", headers=AGAIN)
        key = open_request.get().key
        if self._max_per_key and key and self._of_key[key] >= self._max_per_key:
            message = f"{self._max_per_key} texts of this API key are running or waiting, its limit; try again later"
            raise ServerError(429, message, code="key_limit", headers=AGAIN)

    def cancel_all(self) -> None:
        """Cancel all texts, also those that are being submitted."""
        for text in self._texts:
            text.add_done_callback(partial(_cancel, reason=SHUTTING_DOWN))


def _has_ended(text: asyncio.Future[Handle]) -> bool:
    return text.done() and (text.cancelled() or text.exception() is not None or text.result().done)


def _cancel(text: asyncio.Future[Handle], reason: str = "cancelled") -> None:
    """Cancel a submitted text, unless it has ended or its submission failed."""
    if not _has_ended(text):
        text.result().cancel(reason)


class ClientPresence:
    """Middleware that cancels a request and its texts when its client disconnects.

    Streamed replies notice this without help; other replies do not.

    Args:
        app: the application.
        timeout: seconds after the arrival of a request until its texts are cut off; None for no limit.
    """

    def __init__(self, app: ASGIApp, timeout: float | None) -> None:
        self._app = app
        self._timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body_arrival = asyncio.Event()
        is_answered = False

        async def take() -> Message:
            message = await receive()
            if not message.get("more_body", False):
                body_arrival.set()
            return message

        async def give(message: Message) -> None:
            nonlocal is_answered
            is_answered |= message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        async def watch() -> None:
            await body_arrival.wait()
            while (await receive())["type"] != "http.disconnect":
                pass
            if not is_answered:
                answer_task.cancel()

        user = scope.get("user")  # set by starlette if the server has keys
        with OpenRequest(user.display_name if user else "", self._timeout).answering():
            answer_task = asyncio.ensure_future(self._app(scope, take, give))
            watch_task = asyncio.ensure_future(watch())
            try:
                await asyncio.wait([answer_task])
                with suppress(ClientDisconnect):  # raised while the body is read
                    if not answer_task.cancelled():
                        answer_task.result()
            finally:
                answer_task.cancel()
                watch_task.cancel()
