"""The handle of a submitted request: its text as it is written, from any thread or event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from drafttree.core.errors import InputError
from drafttree.engine.batching.served_request import Ended, Reader
from drafttree.engine.metrics import Metrics
from drafttree.engine.request import Chunk, Generation


class Handle(Reader):
    """A request in an engine.

    Iterate over it, or `async for`, to get its text chunk by chunk; `result` waits for the whole. Chunks are given out
    once, to one reader at a time; `result` may be asked as often and from as many threads as wanted.

    Args:
        cancel: tells the engine that nobody wants the rest, and the finish reason.
        metrics: of the text; they grow while it is written.

    Attributes:
        metrics: as given.
    """

    def __init__(self, cancel: Callable[[str], None], metrics: Metrics) -> None:
        self.metrics = metrics
        self._cancel = cancel
        self._changed = threading.Condition()
        self._chunks: deque[Chunk] = deque()
        self._ended: Ended | None = None
        self._listeners: set[Callable[[], None]] = set()
        self._reading = threading.Lock()

    def __repr__(self) -> str:
        state = "running" if self._ended is None else "failed" if self.error else "done"
        return f"Handle({state}, {self.metrics!r})"

    @property
    def done(self) -> bool:
        """Whether the text has ended, by an error too."""
        return self._ended is not None

    @property
    def error(self) -> Exception | None:
        """Why it failed; None if it has not."""
        return self._ended if isinstance(self._ended, Exception) else None

    def cancel(self, reason: str = "cancelled") -> None:
        """End the text where it is, within a round; one that has ended stays so.

        Args:
            reason: its finish reason.
        """
        self._cancel(reason)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call back now, and whenever there is more of the text or it has ended.

        Args:
            listener: is called by the engine's thread, which waits for it.
        """
        with self._changed:
            if not self.done:
                self._listeners.add(listener)
            listener()

    def result(self, timeout: float | None = None) -> Generation:
        """Wait for the whole text.

        Args:
            timeout: seconds to wait at most, None for as long as it takes.

        Raises:
            TimeoutError: it has not ended by then; it goes on.
            Exception: what the request failed with.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the text has not ended within {timeout} seconds; it goes on")
        return self._whole()

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks that were not read yet, as they come.

        Raises:
            InputError: another thread or task is reading them.
            Exception: what the request failed with.
        """
        with _Alone(self._reading):
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._chunks or self.done)
                    if not self._chunks:
                        break
                    chunk = self._chunks.popleft()
                yield chunk
        self._raise_error()

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        """As iteration, without holding up the event loop. Leaving the loop early cancels nothing: call `cancel`."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            loop.call_soon_threadsafe(news.set)

        with _Alone(self._reading):
            self._listeners.add(listener)
            try:
                while True:
                    news.clear()
                    while self._chunks:
                        yield self._chunks.popleft()
                    if self.done and not self._chunks:
                        break
                    await news.wait()
            finally:
                self._listeners.discard(listener)
        self._raise_error()

    def chunk(self, chunk: Chunk) -> None:
        with self._changed:
            self._chunks.append(chunk)
            self._tell()

    def end(self, ended: Ended) -> None:
        with self._changed:
            self._ended = ended
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


class _Alone:
    """Lets one reader in at a time."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise InputError("this handle is being read by another thread or task; read it in one place")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
