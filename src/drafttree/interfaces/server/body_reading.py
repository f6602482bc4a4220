"""Bodies of requests: bounded as they arrive, and made into requests beside the event loop where they are large."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError, WrapValidator
from starlette.types import Receive, Scope

from drafttree.core.machine_memory import collection_pause
from drafttree.interfaces.server.admission import open_request, read_request
from drafttree.interfaces.server.errors import AGAIN, ServerError, refusal_of

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
SMALL = 16 << 10
"""Bytes of a body that is read without a thread of its own."""
LARGE_BODIES = 2
"""Large bodies that are made into prompts at the same time: all threads share one interpreter with the event loop."""
UNCOUNTED = bytes({*range(256)} - {*b'",[{'})
CONVERSATIONS = ("messages", "input")
"""The fields that have the messages of a conversation, each of which takes a token or more of the context."""
SURROGATE = re.compile("[\ud800-\udfff]")
Model = TypeVar("Model")
Body = Annotated[Model, WrapValidator(lambda given, check: given.value if isinstance(given, _Read) else check(given))]
"""The type of a parameter that is a body, which the route has read."""


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


class BodyLimits:
    """How large a body may be, and how much of all bodies there may be at a time.

    Args:
        context: tokens of the model's context, None for no limit.
        most_bytes: the largest body in bytes; None for what the context needs.

    Attributes:
        context: as given.
        held: bytes of all bodies that are being read.
        turns: has a place for each large body that is being made into prompts.
    """

    def __init__(self, context: int | None, most_bytes: int | None = None) -> None:
        tokens = ANY_CONTEXT if context is None else context
        self._most_bytes = BYTES + BYTES_PER_TOKEN * tokens if most_bytes is None else most_bytes
        self._most_items = ITEMS + ITEMS_PER_TOKEN * tokens
        self.context, self.held, self.turns = context, 0, asyncio.Semaphore(LARGE_BODIES)

    def refusal(self, size: int, items: int) -> ServerError | None:
        """What is wrong with a body of which so much has come."""
        if size > self._most_bytes:
            return _too_large(self._most_bytes, "bytes")
        if items > self._most_items:
            return _too_large(self._most_items, "items in its lists and objects")
        if self.held > BODIES_AT_ONCE * self._most_bytes:
            message = f"the bodies of all requests take {self.held} bytes, which is too much; try again later"
            return ServerError(429, message, code="bodies_full", headers=AGAIN)
        return None


def _too_large(most: int, what: str) -> ServerError:
    message = f"the body has more than {most} {what}, which is the limit; send less at once"
    return ServerError(413, message, code="body_too_large", headers={"Connection": "close"})


@dataclass(frozen=True)
class _Read:
    """A body that has been read, which FastAPI need not check again."""

    value: Any


class BodyRoute(APIRoute):
    """A route that reads its body as `Body` says."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of a request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind = TypeAdapter[Any](self.body_field.field_info.annotation)

        async def read_and_handle(request: Request) -> Response:
            return await handle(_BodyRequest(request.scope, request.receive, kind))

        return read_and_handle


class _BodyRequest(Request):
    """A request whose body must be of a kind."""

    def __init__(self, scope: Scope, receive: Receive, kind: TypeAdapter[Any]) -> None:
        super().__init__(scope, receive)
        self._kind, self._limits = kind, self.app.state.serving.bodies
        self._open = open_request.get()

    async def stream(self) -> AsyncGenerator[bytes]:
        """The body as it arrives.

        Raises:
            ServerError: it is too large, by what it says or as soon as it turns out, or there is no room for it.
        """
        limits, count, size, discarded = self._limits, ItemCount(), 0, 0

        def release() -> None:
            limits.held -= size

        self._open.reading.callback(release)
        refusal = limits.refusal(int(self.headers.get("content-length", 0)), 0)
        async for part in super().stream():
            if refusal:
                discarded += len(part)
                if discarded >= DISCARDED:
                    break
                continue
            size += len(part)
            limits.held += len(part)
            count.add(part)
            refusal = limits.refusal(size, count.items)
            if refusal is None:
                yield part
        if refusal:
            raise refusal

    async def json(self) -> _Read:
        """The body as the route wants it.

        Raises:
            JSONDecodeError: it is not JSON.
            ServerError: it is compressed, JSON that is not read, or not what the route wants.
        """
        body = await self.body()
        if (coding := self.headers.get("content-encoding", "identity").lower()) != "identity":
            message = f"the body has the Content-Encoding {coding!r}, which is not read; send it as it is"
            raise ServerError(415, message, code="content_encoding")
        if len(body) > SMALL:
            await self._limits.turns.acquire()
            self._open.reading.callback(self._limits.turns.release)
            self._open.large = True
        found = await read_request(partial(_read, body, self._kind, self._limits.context))
        self._body = b""  # streams last long
        return _Read(found)


def _read(body: bytes, kind: TypeAdapter[Any], context: int | None) -> Any:
    """A body as it must be, or its first mistake."""
    with collection_pause:
        given = _parse(body)
        if place := _place_of(
            given, lambda part: isinstance(part, str) and not part.isascii() and SURROGATE.search(part)
        ):
            what = "this holds half a surrogate pair, which is not text"
            raise refusal_of({"type": "string_unicode", "loc": place, "msg": what})
        for name in CONVERSATIONS:
            messages = given.get(name) if isinstance(given, dict) else None
            if isinstance(messages, list) and context is not None and len(messages) > context:
                message = f"{name}: {len(messages)} do not fit into the model's context of {context} tokens; send fewer"
                raise ServerError(400, message, param=name, code="context_length_exceeded")
        try:
            return kind.validate_python(given, from_attributes=True)
        except ValidationError as error:
            raise refusal_of(error.errors(include_url=False)[0]) from None


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise ServerError(400, "the body is not UTF-8 text", code="invalid_utf8") from None
    except RecursionError:
        raise ServerError(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError:
        what = f"this is an integer of more than {sys.get_int_max_str_digits()} digits, which is not read"
        raise refusal_of({"type": "int_parsing_size", "loc": _place_of_long_integer(body), "msg": what}) from None


def _place_of_long_integer(body: bytes) -> tuple[str | int, ...]:
    """The steps to an integer that Python's parser refuses; none where what comes behind it is no JSON."""
    most, long = sys.get_int_max_str_digits(), object()
    try:
        found = json.loads(body, parse_int=lambda digits: long if len(digits.lstrip("-")) > most else 0)
    except (ValueError, RecursionError):
        return ()
    return _place_of(found, lambda part: part is long)


def _place_of(given: Any, wrong: Callable[[Any], object]) -> tuple[str | int, ...]:
    """The steps to a text or number that is wrong, or to what has a name that is; none where all are right."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), given)]
    while waiting:
        place, part = waiting.pop()
        if isinstance(part, dict):
            waiting += [((*place, name), each) for name, value in part.items() for each in (name, value)]
        elif isinstance(part, list):
            waiting += [((*place, index), value) for index, value in enumerate(part)]
        elif wrong(part):
            return place
    return ()
