"""What every request passes before it is answered: the key, the limit of bodies, and whether its client is there."""

import asyncio
import hmac
from contextlib import suppress
from hashlib import sha256

from fastapi import HTTPException
from fastapi.security.utils import get_authorization_scheme_param
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError, SimpleUser
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.serving import Admission

PROTECTED = ("/v1", "/tokenize", "/detokenize")
"""Where the paths begin that need the key; health, metrics and the page of the playground do not."""
DISCARDED = 16 << 20
"""Bytes of a refused body that are read all the same: who still writes when the connection is closed sees no reply."""


class ApiKey(AuthenticationBackend):
    """Lets in who has the key.

    Args:
        key: the key that requests must carry.
    """

    def __init__(self, key: str) -> None:
        self._digest = _digest(key)

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        """Check the key of a request, in a time that does not depend on how much of it is right.

        Raises:
            AuthenticationError: it is missing or wrong.
        """
        path = conn.url.path
        if not any(path == each or path.startswith(f"{each}/") for each in PROTECTED):
            return None
        scheme, given = get_authorization_scheme_param(conn.headers.get("authorization"))
        if scheme.lower() != "bearer" or not given:
            given = conn.headers.get("x-api-key")
        if not given:
            raise AuthenticationError(
                "there is no API key; send the header Authorization: Bearer KEY or X-Api-Key: KEY"
            )
        if not hmac.compare_digest(_digest(given), self._digest):
            raise AuthenticationError("the API key is wrong")
        return AuthCredentials(), SimpleUser("client")


def refuse(conn: HTTPConnection, error: AuthenticationError) -> Response:
    """The reply to a request that is not let in."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ServerError(401, str(error), code="invalid_api_key", headers=headers).response_to(conn.url.path)


class BodyLimit:
    """Answers 413 to a body that says it is too large, or that turns out to be while it is read.

    Args:
        app: the application behind it.
        most: the largest body that is let through, in bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        message = f"the body has more than {self._most} bytes, which is the limit"
        if int(Headers(scope=scope).get("content-length", 0)) > self._most:
            await _discard(receive)
            error = ServerError(413, message, code="body_too_large", headers={"Connection": "close"})
            await error.response_to(scope["path"])(scope, receive, send)
            return
        size = 0

        async def limited() -> Message:
            nonlocal size
            part = await receive()
            size += len(part.get("body", b""))
            if size > self._most:
                if part.get("more_body", False):
                    await _discard(receive)
                raise HTTPException(413, message, {"Connection": "close"})
            return part

        await self._app(scope, limited, send)


class ClientPresence:
    """Stops answering when nobody listens any more, and cancels the texts that were submitted for the answer.

    Streams find out by themselves that they are read by nobody; what is answered as a whole would not.

    Args:
        app: the application behind it.
        admission: knows which texts are whose.
    """

    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = _Client(receive, send)
        with self._admission.request((scope.get("client") or ("",))[0]):
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
        receive: the server's channel of what the client sends.
        send: the server's channel to the client.
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


def _digest(key: str) -> bytes:
    """A digest, whose length does not tell the key's."""
    return sha256(key.encode(errors="surrogateescape")).digest()


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, or as much of it as one may wait for."""
    size = 0
    while size < DISCARDED:
        part = await receive()
        size += len(part.get("body", b""))
        if not part.get("more_body", False):
            return
