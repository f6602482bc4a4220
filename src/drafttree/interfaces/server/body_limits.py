"""How large a body may be: in bytes, and in items, which are counted as it arrives and before any object is made."""

import json

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drafttree.interfaces.server.errors import AGAIN, ServerError

BYTES, BYTES_PER_TOKEN = 4 << 20, 16
ITEMS, ITEMS_PER_TOKEN = 1 << 16, 4
"""A body may have so many, and so many more for each token of the model's context. 156 tools with 60 properties each
have 40,000 items; a character takes 6 bytes where JSON escapes it."""
ANY_CONTEXT = 1 << 17
"""Stands for the context of a model that has no end."""
BODIES_AT_ONCE = 64
"""Bodies of the largest size whose bytes may be held together."""
DISCARDED = 16 << 20
"""Bytes of a refused body that are read all the same: who still writes when the connection is closed sees no reply."""
UNCOUNTED = bytes({*range(256)} - {*b'",[{'})


class ItemCount:
    """Counts what the lists and objects of a JSON text hold, and themselves, part by part and without parsing.

    It takes 2 ms for a MB, whose objects may take Python and pydantic 3 s.

    Attributes:
        items: those so far.
    """

    def __init__(self) -> None:
        self.items = 0
        self._rest = b""
        self._in_string = False
        self._has_strings: bool | None = None

    def add(self, part: bytes) -> None:
        """Count the items of the next part."""
        if self._has_strings is None and part:  # UTF-16 has bytes of quotes in other characters: all of it counts
            self._has_strings = json.detect_encoding(part[:4]).startswith("utf-8")
        outside = self._without_strings(part) if self._has_strings else part
        self.items += outside.count(b",") + outside.count(b"[") + outside.count(b"{")

    def _without_strings(self, part: bytes) -> bytes:
        text = self._rest + part
        backslashes = (len(text) - len(text.rstrip(b"\\"))) % 2
        text, self._rest = text[: len(text) - backslashes], text[len(text) - backslashes :]  # it escapes what comes
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, UNCOUNTED)
        pieces = text.replace(b'""', b"").split(b'"')  # two quotes with nothing to count between them change nothing
        outside = pieces[self._in_string :: 2]
        self._in_string ^= len(pieces) % 2 == 0
        return b"".join(outside)


class BodyLimit:
    """Refuses a body that is too large, by what it says or as soon as it turns out, and more bodies than there is room.

    Args:
        app: the application behind it.
        context: tokens of the model's context, None for no limit.
        most_bytes: the largest body in bytes; None for what the context needs.
    """

    def __init__(self, app: ASGIApp, context: int | None, most_bytes: int | None = None) -> None:
        tokens = ANY_CONTEXT if context is None else context
        self._most_bytes = BYTES + BYTES_PER_TOKEN * tokens if most_bytes is None else most_bytes
        self._most_items = ITEMS + ITEMS_PER_TOKEN * tokens
        self._app, self._held = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if int(Headers(scope=scope).get("content-length", 0)) > self._most_bytes:
            await _discard(receive)
            await _too_large(self._most_bytes, "bytes").response_to(scope["path"])(scope, receive, send)
            return
        size, held, count = 0, 0, ItemCount()

        async def limited() -> Message:
            nonlocal size, held
            message = await receive()
            part = message.get("body", b"")
            size += len(part)
            held += len(part)
            self._held += len(part)
            count.add(part)
            if error := self._error(size, count.items):
                if message.get("more_body", False):
                    await _discard(receive)
                raise error
            return message

        async def answering(message: Message) -> None:
            nonlocal held
            self._held -= held  # what is answered has been read
            held = 0
            await send(message)

        try:
            await self._app(scope, limited, answering)
        finally:
            self._held -= held

    def _error(self, size: int, items: int) -> ServerError | None:
        """What is wrong with a body of which so much has come."""
        if size > self._most_bytes:
            return _too_large(self._most_bytes, "bytes")
        if items > self._most_items:
            return _too_large(self._most_items, "items in its lists and objects")
        if self._held > BODIES_AT_ONCE * self._most_bytes:
            message = f"the bodies of all requests take {self._held} bytes, which is too much; try again later"
            return ServerError(429, message, code="bodies_full", headers=AGAIN)
        return None


def _too_large(most: int, what: str) -> ServerError:
    message = f"the body has more than {most} {what}, which is the limit; send less at once"
    return ServerError(413, message, code="body_too_large", headers={"Connection": "close"})


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, or as much of it as one may wait for."""
    size = 0
    while size < DISCARDED:
        part = await receive()
        size += len(part.get("body", b""))
        if not part.get("more_body", False):
            return
