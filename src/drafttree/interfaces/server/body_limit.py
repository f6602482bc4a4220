"""Refuses bodies that are too large, before they are in memory."""

from fastapi import HTTPException
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drafttree.interfaces.server.errors import ServerError

DISCARDED = 16 << 20
"""Bytes of a refused body that are read all the same: who still writes when the connection is closed sees no reply."""


class BodyLimit:
    """Answers 413 to a body that says it is too large, or that turns out to be while it is read.

    Args:
        app: that is asked otherwise.
        most: bytes.
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
            await error.response(scope, receive, send)
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


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, or as much of it as one may wait for."""
    size = 0
    while size < DISCARDED:
        part = await receive()
        size += len(part.get("body", b""))
        if not part.get("more_body", False):
            return
