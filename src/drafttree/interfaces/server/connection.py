"""A connection to a client: it ends where a request does not arrive, or where its reply is not read."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

ARRIVAL = 60.0
"""Seconds in which a request must be there, its body included, from the first byte or the connection on."""
UNREAD = 30.0
"""Seconds after which a client that takes nothing of what was written for it is left."""


class Connection(AutoHTTPProtocol):  # pyright: ignore[reportGeneralTypeIssues]
    """Uvicorn's own, which waits for ever for a client that sends a part of a request, or that does not read.

    Nothing is kept for a client beyond what the system takes: until it reads, whoever writes for it waits.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, with a request that is to arrive."""
        super().connection_made(transport)
        self._arriving: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self.transport.set_write_buffer_limits(high=0)
        self._watch_arrival()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._watch_arrival()

    def pause_writing(self) -> None:
        """Note that the client does not read as fast as is written for it."""
        super().pause_writing()
        self._watch_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Note that it has read."""
        super().resume_writing()
        if self._reading:
            self._reading.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        for timer in (self._arriving, self._reading):
            if timer:
                timer.cancel()

    def _watch_arrival(self) -> None:
        """Let the time run from the beginning of a request to its end."""
        cycle = self.cycle
        arrives = cycle is None or cycle.more_body or cycle.response_complete
        if arrives and not self._arriving:
            self._arriving = self.loop.call_later(ARRIVAL, self.transport.abort)
        elif self._arriving and not arrives:
            self._arriving.cancel()
            self._arriving = None

    def _watch_reading(self, left: int) -> None:
        """Look again later whether there is less left."""
        self._reading = self.loop.call_later(UNREAD, self._leave_unless_read, left)

    def _leave_unless_read(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < before:
            self._watch_reading(left)
        else:
            self.transport.abort()
