"""The life cycle of a server and its connections: listening, serving, and finishing running texts at the end."""

import asyncio
import math
import os
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import frozen_heap
from drafttree.engine.compatibility import precision_of
from drafttree.interfaces.server.serving import ServingContext

LONG = 10.0
"""Seconds of grace for which the next three times are meant. With less grace, they shrink in proportion."""
ENDING, LEAVING = 2.0, 1.0
"""Seconds before the end of the grace: when texts are cancelled, and when the server stops waiting for them."""
LAST_WORDS = 0.5
"""Seconds after the last text until open connections are cut."""
AHEAD = 8 << 10
"""Size of each connection's send buffer, in bytes; the system's default would buffer megabytes for a slow client."""
STUCK = 5
"""The most seconds that uvicorn's own shutdown waits for what does not end when asked to."""


class DrainingServer(uvicorn.Server):
    """A server that drains at the first signal: running texts finish, new ones get status 503. A second one ends it.

    Args:
        app: an application of `create_app`, whose settings are the server's.
        tell: called with each line for the user.
    """

    def __init__(self, app: FastAPI, tell: Callable[[str], None]) -> None:
        serving: ServingContext = app.state.serving
        settings = serving.settings
        config = uvicorn.Config(
            app,
            http=Connection,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=[*settings.trusted_proxies],
            timeout_keep_alive=settings.keep_alive,
            timeout_graceful_shutdown=STUCK,
        )
        super().__init__(config)
        self._admission = serving.admission
        self._grace = settings.grace
        self._tell = tell
        self._pace = min(settings.grace / LONG, 1)
        self._has_told = False
        self._drain_time = 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain at the first signal, and end at the second."""
        if not self._admission.draining:
            self._admission.draining = True
            self._drain_time = time.monotonic()
            return
        self._admission.cancel_all()
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; uvicorn asks several times a second."""
        if self._admission.draining:
            if self._admission.busy and not self._has_told:
                self._has_told = True
                self._tell(f"finishing {self._admission.open} texts; a second signal ends them at once")
            self._admission.refuse_preparing()
            seconds_left = self._drain_time + self._grace - time.monotonic()
            if seconds_left < ENDING * self._pace:
                self._admission.cancel_all()
            self.should_exit |= not self._admission.busy or seconds_left < LEAVING * self._pace
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections, by force if they do not close within `LAST_WORDS`."""

        def leave() -> None:
            for connection in tuple(self.server_state.connections):
                connection.transport.abort()

        asyncio.get_running_loop().call_later(LAST_WORDS * self._pace, leave)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; it does not accept connections yet.

    Raises:
        ConfigError: the address is in use, or is not one of this machine's.
    """
    try:
        family, socket_type, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket_type, protocol)
        if os.name == "posix":  # on other systems, two servers could share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, AHEAD)
        listener.bind(address)
    except OSError as error:
        raise _unavailable(host, port, error) from None
    return listener


def run(app: FastAPI, listener: socket.socket, tell: Callable[[str], None]) -> None:
    """Serve an application of `create_app` until a signal ends it, and then end the process.

    Args:
        app: the application.
        listener: a socket of `listen`.
        tell: called with each line for the user.

    Raises:
        ConfigError: another server is now listening at the address.
    """
    serving: ServingContext = app.state.serving
    host, port = listener.getsockname()[:2]
    try:
        listener.listen()
    except OSError as error:
        raise _unavailable(host, port, error) from None
    model = f"{serving.settings.model_name} in {precision_of(serving.decoder.target)}"
    tell(f"serving {model} at {address(host, port)} ({serving.decoder.fidelity.words})")
    if not serving.settings.api_keys:
        sharers = "all requests" if serving.settings.shares_prefixes else "requests with the same cache_salt only"
        tell(f"common prefixes of prompts are shared among {sharers}")
    with frozen_heap():
        DrainingServer(app, tell).run(sockets=[listener])
    sys.stdout.flush()
    os._exit(0)  # with torch loaded, Python takes seconds to exit on a busy machine


def address(host: str, port: int) -> str:
    """The URL of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _unavailable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen at {address(host, port)}: {error.strerror}; choose another --host or --port")


ARRIVAL = 60.0
"""Seconds from a connection, or from the first byte of a later request, until a whole request must have arrived."""
UNREAD = 30.0
"""Seconds without reading after which a client is disconnected."""


class Connection(AutoHTTPProtocol):  # pyright: ignore[reportGeneralTypeIssues]
    """A connection with time limits. Uvicorn's own connection waits for ever for a client that sends or reads nothing.

    It buffers nothing beyond the system's send buffer, so a writer waits until the client reads.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._arrival_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self.transport.set_write_buffer_limits(high=0)
        self._watch_arrival()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_arrival()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading(math.inf)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading_timer:
            self._reading_timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._arrival_timer, self._reading_timer):
            if timer:
                timer.cancel()

    def _watch_arrival(self) -> None:
        """Start the time limit when a request begins, and stop it when its body is complete."""
        cycle = self.cycle
        awaits_body = cycle is None or cycle.more_body or cycle.response_complete
        if awaits_body and not self._arrival_timer:
            self._arrival_timer = self.loop.call_later(ARRIVAL, self.transport.abort)
        elif self._arrival_timer and not awaits_body:
            self._arrival_timer.cancel()
            self._arrival_timer = None

    def _watch_reading(self, earlier_bytes: float) -> None:
        """If no fewer than `earlier_bytes` bytes are unread, disconnect the client; else look again later."""
        unread_bytes = self.transport.get_write_buffer_size()
        if unread_bytes < earlier_bytes:
            self._reading_timer = self.loop.call_later(UNREAD, self._watch_reading, unread_bytes)
        else:
            self.transport.abort()
