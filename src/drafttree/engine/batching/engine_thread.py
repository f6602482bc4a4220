"""The thread of an engine. It knows nothing of the engine, which may therefore be dropped without being closed."""

import atexit
import contextlib
import ctypes
import threading
from collections import deque
from pathlib import Path

from drafttree.core.errors import EngineClosedError
from drafttree.core.machine_memory import release_unused_memory
from drafttree.engine.batching.batch_loop import BatchLoop
from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.target_lock import lock_of

IDLE_SECONDS = 1.0
"""Seconds without a request after which unused memory is given back, once until there is another."""
MAPS = Path("/proc/self/maps")
HARD = 2
"""`omp_pause_hard` of OpenMP 5.0: give up all threads."""


class EngineThread:
    """Runs the rounds of a loop while there are requests, and waits for some where there are none.

    Args:
        loop: is run by nobody else.

    Attributes:
        changed: is held to hand over requests; they join the loop together.
    """

    def __init__(self, loop: BatchLoop) -> None:
        self.changed = threading.Condition()
        self._loop = loop
        self._inbox: deque[ServedRequest] = deque()
        self._submitted = 0
        self._closing = False
        self._ended = threading.Event()
        _release_idle_workers()
        self._thread = threading.Thread(target=self._run, name="drafttree-engine", daemon=True)
        atexit.register(self.close)  # Python aborts if it ends while a daemon thread is inside torch
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closing or not self._thread.is_alive()

    def check_open(self) -> None:
        """Refuse a request that nobody would write.

        Raises:
            EngineClosedError: it was closed, or runs in another process.
        """
        if self._closing:
            raise EngineClosedError("the engine is closed; make another one to submit requests")
        if not self._thread.is_alive():
            raise EngineClosedError(
                "the engine's thread was left behind in the process that this one was forked from; make another engine "
                "here to submit requests"
            )

    def add(self, served: ServedRequest) -> None:
        """Let a request join the loop; any thread may call it.

        Raises:
            EngineClosedError: it takes no more.
        """
        with self.changed:
            self.check_open()
            served.order = self._submitted
            self._submitted += 1
            self._inbox.append(served)
            self.changed.notify_all()

    def wake(self) -> None:
        """Let it look at its requests."""
        with self.changed:
            self.changed.notify_all()

    def finish(self) -> None:
        """Take no more requests and end when all texts are written, without waiting for that."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()

    def close(self, *, drain: bool = False) -> None:
        """Take no more requests and wait for the end, unless this is the thread itself.

        Args:
            drain: as for `Engine.close`.
        """
        if not self._thread.is_alive():  # in a forked process too, where a lock may be held for ever
            self._closing = True
            return
        with self.changed:
            if not drain:
                self._loop.cancel_all()
            self.finish()
        if threading.current_thread() is not self._thread:
            self._ended.wait()  # a join that Ctrl-C interrupts marks the thread as ended (CPython 90882)
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take():
                with lock_of(self._loop.target):
                    self._loop.step()
        except BaseException as error:
            self._closing = True
            self._take_all()
            self._loop.fail(error if isinstance(error, Exception) else EngineClosedError(f"the engine died: {error!r}"))
            raise
        finally:
            atexit.unregister(self.close)
            self._ended.set()

    def _take(self) -> bool:
        """Hand what was submitted to the loop; whether there is anything to do, or will be."""
        with self.changed:
            idle = not self.changed.wait_for(self._has_news, IDLE_SECONDS)
        if idle:
            release_unused_memory()
        with self.changed:
            self.changed.wait_for(self._has_news)
            self._take_all()
            return self._loop.busy

    def _has_news(self) -> bool:
        return bool(self._inbox) or self._loop.ready or (self._closing and not self._loop.busy)

    def _take_all(self) -> None:
        while self._inbox:
            self._loop.add(self._inbox.popleft())


def _release_idle_workers() -> None:
    """Let GNU OpenMP give up the worker threads of the calling thread; its next parallel region makes new ones.

    Every thread that has run an operation of torch keeps its workers. As soon as there are more of them than cores, GNU
    OpenMP lets all workers sleep between two operations instead of waiting a moment, and waking them takes longer than
    a small operation: rounds of 16 requests took 170 ms in a second thread, and 140 ms after the first one's workers
    were given up. Elsewhere than on Linux, and with other libraries, nothing is done.
    """
    with contextlib.suppress(OSError, AttributeError):
        lines = MAPS.read_text().splitlines()
        for library in {line.split()[-1] for line in lines if "libgomp" in line}:
            ctypes.CDLL(library).omp_pause_resource_all(HARD)
