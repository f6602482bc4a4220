"""The lock of a target: one thread at a time runs a round on it, so that engines and other threads can share it."""

import os
import threading
from types import TracebackType
from weakref import WeakKeyDictionary

from drafttree.models import Model


class TargetLock:
    """Is held for a round at a time, by threads in turn; the thread that holds it may take it again.

    Recorded passes find their inputs and leave their outputs in memory that all texts share, and recording bears no
    work of other threads, so two passes at once would give wrong texts.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        thread_id = threading.get_ident()
        if self._owner != thread_id:
            with self._next:  # who waits here goes before the thread that has just had its turn and comes again
                self._lock.acquire()
            self._owner = thread_id
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()


_LOCKS: WeakKeyDictionary[Model, TargetLock] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_LOCKS.clear)  # a thread that held one of them is not in the child


def lock_of(target: Model) -> TargetLock:
    """The lock of a target, the same for all decoders and engines over it."""
    return _LOCKS.get(target) or _LOCKS.setdefault(target, TargetLock())
