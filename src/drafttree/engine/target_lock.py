"""The lock of a target, which lets engines and other threads share it: one thread at a time runs a round."""

import os
import threading
from types import TracebackType
from weakref import WeakKeyDictionary

from drafttree.models import Model


class TargetLock:
    """A reentrant lock that threads take turns to hold, for a round at a time.

    Recorded passes have their inputs and outputs in memory that all texts share, and nothing else may run while a pass
    is recorded. So two passes at once would give wrong texts.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        thread_id = threading.get_ident()
        if self._owner != thread_id:
            with self._next:  # a thread that waits here goes before one that has just had its turn
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
    os.register_at_fork(after_in_child=_LOCKS.clear)  # the child lacks the threads that may hold them


def lock_of(target: Model) -> TargetLock:
    """Return the lock of a target, which all decoders and engines with this target share."""
    return _LOCKS.get(target) or _LOCKS.setdefault(target, TargetLock())
