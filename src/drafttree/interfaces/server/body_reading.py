"""Bodies of requests: limited in size as they arrive, and parsed in a thread if they are large."""

import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError, WrapValidator
from starlette.types import Scope

from drafttree.core.machine_memory import collection_pause
from drafttree.interfaces.server.admission import open_request, read_request
from drafttree.interfaces.server.errors import AGAIN, NO_OBJECT, ServerError, refusal_of
from drafttree.interfaces.server.written_json import read_float, read_integer

BYTES, BYTES_PER_TOKEN = 4 << 20, 16
ITEMS, ITEMS_PER_TOKEN = 1 << 16, 4
"""Limits of a body: a fixed part, and a part per token of the model's context. For comparison, 156 tools with 60
properties each have 40,000 items, and a character that JSON escapes takes 6 bytes."""
ANY_CONTEXT = 1 << 17
"""Used as the context of a model without a limit, in tokens."""
BODIES_AT_ONCE = 64
"""Memory for all bodies that are being read, in bodies of the largest size."""
DISCARDED, DISCARDING = 16 << 20, 3.0
"""The most bytes of a refused body that are still read, and the most seconds for it: a client that is still writing
when the connection is closed would not see the reply."""
SMALL = 16 << 10
"""The most bytes of a body that is parsed in the event loop."""
LARGE_BODIES = 2
"""The most large bodies that are parsed at once: their threads share one interpreter with the event loop."""
UNCOUNTED, UNMARKED = (bytes({*range(256)} - {*marks}) for marks in (b'",[{', b",[{"))
CONVERSATIONS = ("messages", "input")
"""Fields with the messages of a conversation, each of which takes at least one token of the context."""
JSON_TYPE = re.compile(r"application/([^/;]+\+)?json\s*(;.*)?", re.IGNORECASE)
SURROGATE = re.compile("[\ud800-\udfff]")
TOO_LONG = object()
"""Stands for an integer of more digits than Python reads."""
Model = TypeVar("Model")
AS_READ = WrapValidator(lambda found, _: found)
Body = Annotated[Model, AS_READ]
"""Type of a route's parameter that is the body: `BodyRoute` checks it, FastAPI only documents it."""


class ItemCount:
    """Counts the lists, objects and their items in a JSON text that arrives in parts, without parsing it.

    A MB takes 2 ms; parsing it may take Python and pydantic 3 s.

    Attributes:
        items: the number of items so far.
    """

    def __init__(self) -> None:
        self.items = 0
        self._rest = b""
        self._in_string = False
        self._has_strings: bool | None = None

    def add(self, part: bytes) -> None:
        """Count the items of the next part."""
        if self._has_strings is None:  # UTF-16 has bytes of quotes in other characters: all of it counts
            part = self._rest + part
            self._rest = b""
            if len(part) < 2:  # one byte does not tell
                self._rest = part
                return
            self._has_strings = json.detect_encoding(part[:4]).startswith("utf-8")
        unquoted_bytes = self._without_strings(part) if self._has_strings else part
        self.items += unquoted_bytes.count(b",") + unquoted_bytes.count(b"[") + unquoted_bytes.count(b"{")

    def _without_strings(self, part: bytes) -> bytes:
        text = self._rest + part
        backslashes = (len(text) - len(text.rstrip(b"\\"))) % 2
        text, self._rest = text[: len(text) - backslashes], text[len(text) - backslashes :]  # it escapes what comes
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        text = text.translate(None, UNCOUNTED)
        pieces = text.replace(b'""', b"").split(b'"')  # two quotes with nothing to count between them change nothing
        unquoted_pieces = pieces[self._in_string :: 2]
        self._in_string ^= len(pieces) % 2 == 0
        return b"".join(unquoted_pieces)


class BodyReader:
    """Reads the bodies of requests, with a limit for each and one for all that are being read.

    Args:
        context: tokens of the model's context; None for no limit.
        most_bytes: the largest body, in bytes; None for as much as the context needs.
    """

    def __init__(self, context: int | None, most_bytes: int | None = None) -> None:
        tokens = ANY_CONTEXT if context is None else context
        self._most_bytes = BYTES + BYTES_PER_TOKEN * tokens if most_bytes is None else most_bytes
        self._most_items = ITEMS + ITEMS_PER_TOKEN * tokens
        self._context = context
        self._held = 0
        self._turns = asyncio.Semaphore(LARGE_BODIES)

    async def read(self, request: Request, kind: TypeAdapter[Any]) -> Any:
        """Read and validate the body of a request.

        Raises:
            ServerError: the body is too large, compressed, not JSON or invalid, or too many others are being read.
        """
        request_state = open_request.get()
        headers = request.headers
        body = await self._receive(request, request_state.reading)
        if not body or not JSON_TYPE.fullmatch(headers.get("content-type", "")):
            raise ServerError(400, f"the body: {NO_OBJECT}", code="model_attributes_type" if body else "missing")
        if (coding := ", ".join(headers.getlist("content-encoding")).lower()) not in ("", "identity"):
            message = f"the body has the Content-Encoding {coding!r}, which is not read; send it as it is"
            raise ServerError(415, message, code="content_encoding")
        if len(body) > SMALL:
            await self._turns.acquire()
            request_state.reading.callback(self._turns.release)
            request_state.large = True
        return await read_request(partial(_read, body, kind, self._context))

    async def _receive(self, request: Request, reading: ExitStack) -> bytes:
        """Receive the bytes of a body, which count toward the limit for all bodies until `reading` is closed.

        Raises:
            ServerError: the body is refused, after up to `DISCARDED` more bytes of it were read.
        """
        chunks = request.stream()
        body = list[bytes]()
        size = 0
        count = ItemCount()
        marks = 0
        counted_chunks = 0

        def release() -> None:
            self._held -= size

        reading.callback(release)
        refusal = self._refusal(int(request.headers.get("content-length", 0)), 0)
        while not refusal and (chunk := await anext(chunks, b"")):
            body.append(chunk)
            size += len(chunk)
            self._held += len(chunk)
            marks += len(chunk.translate(None, UNMARKED))
            if marks > self._most_items:  # those in strings among them; up to here a look at these would take longer
                for body_chunk in body[counted_chunks:]:
                    count.add(body_chunk)
                counted_chunks = len(body)
            refusal = self._refusal(size, count.items)
        if not refusal:
            return b"".join(body)
        body.clear()
        discarded_bytes = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DISCARDING):
                async for chunk in chunks:
                    discarded_bytes += len(chunk)
                    if discarded_bytes >= DISCARDED:
                        break
        raise refusal

    def _refusal(self, size: int, items: int) -> ServerError | None:
        """The error for a body of which `size` bytes have arrived so far; None if it may go on."""
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


class BodyRoute(APIRoute):
    """A route whose body the server's `BodyReader` reads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler of a request, which reads the body first."""
        handle = super().get_route_handler()
        hints = get_type_hints(self.endpoint, include_extras=True).values()
        bodies = [get_args(hint)[0] for hint in hints if AS_READ in get_args(hint)]
        if not bodies:
            return handle
        adapter = TypeAdapter[Any](bodies[0])

        async def read_and_handle(request: Request) -> Response:
            body = await request.app.state.serving.bodies.read(request, adapter)
            return await handle(_ReadRequest(request.scope, body))

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body has been read. FastAPI checks that `body` is not empty, and then calls `json`."""

    def __init__(self, scope: Scope, found: Any) -> None:
        super().__init__(scope)
        self._found = found

    async def body(self) -> bytes:
        return b"read"

    async def json(self) -> Any:
        return self._found


def _read(body: bytes, kind: TypeAdapter[Any], context: int | None) -> Any:
    """Parse and validate a body.

    Raises:
        ServerError: the body is invalid; it tells the first mistake.
    """
    with collection_pause:
        parsed_body = _parse(body)
        for name in CONVERSATIONS:  # first, since it takes no time
            messages = parsed_body.get(name) if isinstance(parsed_body, dict) else None
            if isinstance(messages, list) and context is not None and len(messages) > context:
                message = f"{name}: {len(messages)} do not fit into the model's context of {context} tokens; send fewer"
                raise ServerError(400, message, param=name, code="context_length_exceeded")
        _check_scalars(parsed_body)
        try:
            return kind.validate_python(parsed_body, from_attributes=True)
        except ValidationError as error:
            raise refusal_of(error.errors(include_url=False)[0]) from None


def _parse(body: bytes) -> Any:
    """Parse a JSON text, with `TOO_LONG` for integers that Python does not read.

    Raises:
        ServerError: the text is not JSON.
    """
    try:
        return json.loads(body, parse_int=_integer, parse_float=read_float)
    except json.JSONDecodeError as error:
        raise ServerError(400, f"the body is not JSON: {error.msg}", code="invalid_json") from None
    except UnicodeDecodeError:
        raise ServerError(400, "the body is not UTF-8 text", code="invalid_utf8") from None
    except RecursionError:
        raise ServerError(400, "the body is nested too deeply", code="invalid_json") from None


def _integer(digits: str) -> object:
    try:
        return read_integer(digits)
    except ValueError:
        return TOO_LONG


def _check_scalars(given: Any) -> None:
    """Refuse integers that are too long, and texts and names that are not Unicode.

    Raises:
        ServerError: there is one; it tells the place of the first.
    """
    iterator_stack = [_parts([given])]
    path = list[Any]([0])
    while iterator_stack:  # of what is open, only where it stands is kept: a body may be deep as well as long
        for path[-1], value in iterator_stack[-1]:
            if isinstance(value, dict | list):
                iterator_stack.append(_parts(value))
                path.append(0)
                break
            if value is TOO_LONG:
                message = f"this is an integer of more than {sys.get_int_max_str_digits()} digits, which is not read"
                raise refusal_of({"type": "int_parsing_size", "loc": path[1:], "msg": message})
            if isinstance(value, str) and not value.isascii() and SURROGATE.search(value):
                message = "this holds half a surrogate pair, which is not text"
                raise refusal_of({"type": "string_unicode", "loc": path[1:], "msg": message})
        else:
            iterator_stack.pop()
            path.pop()


def _parts(whole: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    """What a list or an object holds, names included, each with its step."""
    if isinstance(whole, list):
        return iter(enumerate(whole))
    return ((name, member) for name, value in whole.items() for member in (name, value))
