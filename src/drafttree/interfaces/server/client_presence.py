"""Ends what a request has begun when its client goes away."""

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drafttree.interfaces.server.admission import Admission


class ClientPresence:
    """Stops answering when nobody listens any more, and cancels the texts that were submitted for the answer.

    Streams find out by themselves that they are read by nobody; what is answered as a whole would not.

    Args:
        app: that answers.
        admission: knows which texts are whose.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = _Client(receive, send)
        with self._admission.request():
            answering = asyncio.ensure_future(self._app(scope, client.receive, client.send))
            leaving = asyncio.ensure_future(client.leaves())
            try:
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    answering.cancel()
                    with suppress(asyncio.CancelledError):
                        await answering
                else:
                    answering.result()
            finally:
                answering.cancel()
                leaving.cancel()


class _Client:
    """Who sent a request, as the application sees it.

    Args:
        receive: as the server gives it.
        send: likewise.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._listens, self._gone = asyncio.Event(), asyncio.Event()
        self._answered = False

    async def receive(self) -> Message:
        """The next part of the body; behind the last one, that the client has gone."""
        if self._listens.is_set():
            await self._gone.wait()
            return {"type": "http.disconnect"}
        message = await self._receive()
        if not message.get("more_body", False):
            self._listens.set()
        if message["type"] == "http.disconnect":
            self._gone.set()
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._answered = True
        await self._send(message)

    async def leaves(self) -> None:
        """Wait until the client has gone before it was answered; for ever where that does not happen."""
        await self._listens.wait()
        while not self._gone.is_set():
            if (await self._receive())["type"] == "http.disconnect":
                self._gone.set()
        if self._answered:
            await asyncio.Event().wait()
