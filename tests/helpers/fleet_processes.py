"""What a worker's process may do, without a model: each of these is served by a supervisor."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from drafttree.errors import ConfigError
from drafttree.interfaces.dynamo import file_discovery

WORKER_ID = 0xABC123
Registered = Callable[[int], None]


def entry() -> Path:
    """A file by which the fleet knows the worker."""
    return file_discovery.folder() / "v1" / "instances" / f"dynamo%2Fbackend%2Fgenerate%2F{WORKER_ID:x}"


def register(registered: Registered) -> None:
    """Become known."""
    entry().parent.mkdir(parents=True, exist_ok=True)
    entry().touch()
    registered(WORKER_ID)


def ends(registered: Registered) -> None:
    """End as it should."""
    register(registered)
    entry().unlink()


def fails(registered: Registered) -> None:
    """Find that there is no fleet."""
    raise ConfigError("there is no fleet")


def is_killed(registered: Registered) -> None:
    """Die without a word."""
    register(registered)
    os.kill(os.getpid(), signal.SIGKILL)


def is_forgotten(registered: Registered) -> None:
    """Be removed by the frontend, and wait for requests in vain."""
    register(registered)
    time.sleep(0.5)
    entry().unlink()
    time.sleep(60)


def waits(registered: Registered) -> None:
    """Wait to be told to end, and say so."""
    signal.signal(signal.SIGTERM, lambda *_: (entry().unlink(), os._exit(0)))
    register(registered)
    time.sleep(60)
