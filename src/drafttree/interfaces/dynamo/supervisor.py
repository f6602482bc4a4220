"""Runs a worker in a process of its own, and removes it from the fleet when that process dies.

Dynamo itself takes ten seconds to notice that a worker was killed, and requests fail meanwhile.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from drafttree.core.errors import DraftTreeError
from drafttree.interfaces.dynamo import file_discovery

Serve = Callable[[Callable[[int], None]], None]
"""A function that serves until its process is asked to end. It calls its argument with the worker's id."""
LOOK_SECONDS = 1.0
"""Seconds between checks whether the fleet still knows the worker."""
MISSING_SECONDS = 3.0
"""Seconds after which a running worker is ended if the fleet no longer knows it."""


def supervise(serve: Serve) -> int:
    """Serve in another process until that ends. SIGTERM and Ctrl-C let it finish its texts.

    Args:
        serve: serves the model in a process of its own, so it must be picklable.

    Returns:
        The exit code: 0 after SIGTERM or Ctrl-C, 1 if the process died or the fleet no longer knows it.

    Raises:
        DraftTreeError: `serve` raises one.
    """
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(serve, sender), name="drafttree-worker")
    process.start()
    sender.close()
    return _Watch(process, receiver).until_end()


class _Watch:
    """Watches a worker's process.

    Args:
        process: the process that serves.
        receiver: receives the worker's id from the process, and the error that ends it.
    """

    def __init__(self, process: BaseProcess, receiver: Connection) -> None:
        self._process = process
        self._receiver = receiver
        self._worker_id: int | None = None
        self._last_known: float | None = None
        self._forgotten = False
        self._told_to_end = False

    def until_end(self) -> int:
        """Wait for the process; return its exit code, or 1 if it was killed."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        wait_handles: list[Connection | int] = [self._receiver, self._process.sentinel]
        while self._process.is_alive():
            if self._receiver in wait(wait_handles, LOOK_SECONDS) and not self._read_message():
                wait_handles.remove(self._receiver)
            self._check_known()
        self._read_message()
        self._process.join()
        return self._exit_code()

    def _read_message(self) -> bool:
        """Read a message of the process; return whether more may follow."""
        try:
            message = self._receiver.recv() if self._receiver.poll() else None
        except EOFError:
            return False
        if isinstance(message, DraftTreeError):
            self._process.join()
            raise message
        self._worker_id = self._worker_id if message is None else message
        return True

    def _check_known(self) -> None:
        """End the worker if the fleet no longer knows it, because it would get no more requests."""
        if self._worker_id is None or self._told_to_end:
            return
        current_time = time.monotonic()
        if file_discovery.entries(self._worker_id):
            self._last_known = current_time
        elif self._last_known and current_time - self._last_known > MISSING_SECONDS:
            self._forgotten = True
            _say("the fleet has forgotten this worker, which stood still for ten seconds or more; it ends")
            self._end()

    def _end(self) -> None:
        self._told_to_end = True
        self._process.terminate()

    def _exit_code(self) -> int:
        code = self._process.exitcode or 0
        if self._worker_id is not None:
            file_discovery.remove(self._worker_id)
        if self._told_to_end and code in (0, -signal.SIGTERM):
            return int(self._forgotten)
        if code < 0:
            _say(f"the worker was killed by {signal.Signals(-code).name}; its place in the fleet is free")
        return 1 if code < 0 else code


def _run(serve: Serve, sender: Connection) -> None:
    """The body of the worker's process, which ignores the terminal's Ctrl-C and ends when its supervisor dies."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        serve(sender.send)
    except DraftTreeError as error:
        sender.send(error)


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _say(text: str) -> None:
    print(f"drafttree: {text}", file=sys.stderr, flush=True)
