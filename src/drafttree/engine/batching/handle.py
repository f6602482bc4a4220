"""The handle of a submitted request: its text as it is written, from any thread or event loop."""

import asyncio
import math
import threading
import traceback
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, Self

from drafttree.core.errors import InputError
from drafttree.engine.generation import Chunk, Ended, Generation, Reader
from drafttree.engine.metrics import Metrics


class Handle(Reader):
    """A request in an engine.

    Iterate over it, with `for` or `async for`, to get the text chunk by chunk. `result` and `await` wait for the whole
    text. Each chunk is given out once, to one reader at a time; the whole text may be requested any number of times and
    from any thread. Leaving a loop early does not cancel the text: call `cancel`.

    A handle does not refer to its request, so the memory of a text is freed when it ends, even if the handle is kept.

    Args:
        wake: called when the text was cancelled or read, to wake up the engine.
        metrics: metrics of the text, which grow while it is generated.
        max_unread: maximum number of unread chunks before the text pauses; None for no limit.

    Attributes:
        metrics: as given.
        full: whether the text is paused until more of it is read.
    """

    def __init__(self, wake: Callable[[], None], metrics: Metrics, max_unread: int | None = None) -> None:
        self.metrics = metrics
        self.full = False
        self._wake = wake
        self._max_unread = math.inf if max_unread is None else max_unread
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._ended: Ended | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._reader: Callable[[], object] = lambda: None

    def __repr__(self) -> str:
        state = "running" if self._ended is None else "failed" if self.error else "done"
        return f"Handle({state}, {self.metrics!r})"

    @property
    def done(self) -> bool:
        """Whether the text has ended, normally or with an error."""
        return self._ended is not None

    @property
    def error(self) -> Exception | None:
        """The error that ended the text; None if there was none."""
        return self._ended if isinstance(self._ended, Exception) else None

    def cancel(self, reason: str = "cancelled") -> None:
        """End the text after at most one more round. Does nothing if it has ended.

        Args:
            reason: the finish reason of the text.
        """
        self.cancelled = reason
        self._wake()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function now, and again whenever there is more of the text or it has ended.

        Args:
            listener: the function. The engine's thread calls it and waits for it.
        """
        with self._changed:
            if not self.done:
                self._listeners.add(listener)
            listener()

    def result(self, timeout: float | None = None) -> Generation:
        """Wait for the whole text, which from now on does not pause for unread chunks.

        Args:
            timeout: maximum number of seconds to wait; None for no limit.

        Raises:
            InputError: if the timeout is not a number.
            TimeoutError: if the text has not ended by then. It continues.
            Exception: the error that ended the request.
        """
        if timeout is not None:
            if not isinstance(timeout, Real) or isinstance(timeout, bool) or math.isnan(timeout):
                raise InputError(f"timeout is {timeout!r}; give seconds, or None for as long as it takes")
            timeout = min(float(timeout), threading.TIMEOUT_MAX)
        with self._changed:
            self._lift_limit()
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the text has not ended within {timeout} seconds; it goes on")
        return self._whole()

    def __await__(self) -> Generator[Any, None, Generation]:
        """Wait for the whole text, as `result` does, without blocking the event loop."""
        with self._changed:
            self._lift_limit()
        yield from self._news(lambda: self.done).__await__()
        return self._whole()

    def __iter__(self) -> Iterator[Chunk]:
        """Iterate over the chunks that were not read yet, and wait for further ones.

        Raises:
            InputError: if another thread or task is reading the chunks.
            Exception: the error that ended the request.
        """
        return _Chunks(self)

    def __aiter__(self) -> AsyncIterator[Chunk]:
        """Iterate as `for` does, without blocking the event loop."""
        return _Chunks(self)

    def _lift_limit(self) -> None:
        self._max_unread = math.inf
        if self.full:
            self.full = False
            self._wake()

    def _next(self, reader: object) -> Chunk | None:
        with self._read_by(reader), self._changed:
            self._changed.wait_for(lambda: self._chunks or self.done)
            return self._take()

    async def _anext(self, reader: object) -> Chunk | None:
        with self._read_by(reader):
            await self._news(lambda: bool(self._chunks) or self.done)
            return self._take()

    def _take(self) -> Chunk | None:
        """The next chunk; None at the end, after which others may read."""
        with self._changed:
            if self._chunks:
                chunk = self._chunks.popleft()
                if self.full and len(self._chunks) <= self._max_unread // 2:
                    self.full = False
                    self._wake()
                return chunk
        self._reader = lambda: None
        self._raise_error()
        return None

    @contextmanager
    def _read_by(self, reader: object) -> Iterator[None]:
        """Context manager: lock out other readers while `reader` exists, or until an error interrupts its block.

        Raises:
            InputError: if there is another reader.
        """
        with self._changed:
            if self._reader() not in (None, reader):
                raise InputError("this handle is being read by another thread or task; read it in one place")
            self._reader = weakref.ref(reader)
        try:
            yield
        except BaseException:
            self._reader = lambda: None
            raise

    async def _news(self, has_news: Callable[[], bool]) -> None:
        """Wait for the engine's news until `has_news` is true."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(news.set)

        self._listeners.add(listener)
        try:
            while not has_news():
                await news.wait()
                news.clear()
        finally:
            self._listeners.discard(listener)

    def chunk(self, chunk: Chunk) -> None:
        with self._changed:
            self._chunks.append(chunk)
            self.full = len(self._chunks) >= self._max_unread
            self._tell()

    def end(self, outcome: Ended) -> None:
        if isinstance(outcome, Exception):
            _without_frames(outcome)
        with self._changed:
            self._ended = outcome
            self._tell()
            self._listeners.clear()

    def _tell(self) -> None:
        self._changed.notify_all()
        for listener in tuple(self._listeners):
            try:
                listener()
            except RuntimeError:  # its event loop is closed
                self._listeners.discard(listener)

    def _whole(self) -> Generation:
        self._raise_error()
        assert isinstance(self._ended, Generation)
        return self._ended

    def _raise_error(self) -> None:
        if error := self.error:
            raise error


class EngineTraceback(Exception):
    """The traceback of an error in an engine's thread, as text."""


def _without_frames(error: Exception) -> None:
    """Replace the traceback of an error by its text, since frames would keep the tensors of the round alive."""
    if not isinstance(error.__cause__, EngineTraceback):
        error.__cause__ = EngineTraceback("\n" + "".join(traceback.format_exception(error)))
        error.__context__ = None
    error.__traceback__ = None


class _Chunks(Iterator[Chunk], AsyncIterator[Chunk]):
    """The iterator of a handle. Unlike an async generator, it is dropped as soon as the loop over it is left."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        if chunk := self._handle._next(self):
            return chunk
        raise StopIteration

    async def __anext__(self) -> Chunk:
        if chunk := await self._handle._anext(self):
            return chunk
        raise StopAsyncIteration
