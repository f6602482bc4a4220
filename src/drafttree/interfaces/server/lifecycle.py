"""The life of a server: it listens, serves, and lets running texts finish before it ends."""

import os
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from drafttree.core.errors import ConfigError
from drafttree.engine.compatibility import precision_of
from drafttree.interfaces.server.serving import Admission, ServingContext

GRACE = 5
"""Seconds that connections have to end once all texts have been sent."""
PATIENCE = 30
"""Seconds that clients have to read what was written for them once nothing more is being written."""


class DrainingServer(uvicorn.Server):
    """Drains at the first signal: running texts finish and new ones are answered 503. A second signal ends it at once.

    Args:
        config: the settings of uvicorn.
        admission: knows which texts run.
        tell: is called with a line for the user about what happens.
    """

    def __init__(self, config: uvicorn.Config, admission: Admission, tell: Callable[[str], None]) -> None:
        super().__init__(config)
        self._admission, self._tell = admission, tell
        self._told = False
        self._written: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if not self._admission.draining:
            self._admission.draining = True
            return
        self._admission.cancel_all()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; asked several times a second."""
        if self._admission.draining:
            self._say_that_it_drains()
            self._admission.refuse_preparing()
            self.should_exit = self.should_exit or self._is_done()
        return await super().on_tick(counter)

    def _is_done(self) -> bool:
        """Whether all texts were sent, or have been written for so long that nobody seems to read them."""
        if self._admission.open:
            self._written = None
            return False
        self._written = self._written or time.monotonic()
        return not self._admission.busy or time.monotonic() - self._written > PATIENCE

    def _say_that_it_drains(self) -> None:
        if self._admission.busy and not self._told:
            self._told = True
            self._tell(f"finishing {self._admission.open} texts; a second signal ends them where they are")


def listen(host: str, port: int) -> socket.socket:
    """A socket at an address; nobody is let in yet.

    Raises:
        ConfigError: the address is in use, or none of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        if os.name == "posix":  # elsewhere it would let two servers share a port
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        raise _unavailable(host, port, error) from None
    return found


def run(app: FastAPI, listener: socket.socket, tell: Callable[[str], None]) -> None:
    """Serve an application of `create_app` until a signal ends it.

    Args:
        app: the application.
        listener: the socket that `listen` has made.
        tell: is called with a line for the user about what happens.

    Raises:
        ConfigError: another server has begun to listen at the address.
    """
    serving: ServingContext = app.state.serving
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE
    )
    host, port = listener.getsockname()[:2]
    try:
        listener.listen()
    except OSError as error:
        raise _unavailable(host, port, error) from None
    model = f"{serving.model_name} in {precision_of(serving.decoder.target)}"
    tell(f"serving {model} at {address(host, port)} ({serving.decoder.fidelity.words})")
    DrainingServer(config, serving.admission, tell).run(sockets=[listener])


def address(host: str, port: int) -> str:
    """The address of a server, as a browser takes it."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _unavailable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen at {address(host, port)}: {error.strerror}; choose another --host or --port")
