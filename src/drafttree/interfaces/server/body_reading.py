"""Reads bodies of requests: limits their size as they arrive, and parses large ones in a thread."""

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
from drafttree.interfaces.server.fields import TEXT_MODEL, ServedModel
from drafttree.interfaces.server.written_json import read_float, read_integer

BYTES, BYTES_PER_TOKEN = 4 << 20, 16
ITEMS, ITEMS_PER_TOKEN = 1 << 16, 4
"""The limit of a body is the sum of a fixed part and a part per token of the model's context. For comparison, 156 tools
with 60 properties each have 40,000 items, and a character that JSON escapes takes 6 bytes."""
IMAGE_BYTES = 50 << 20
"""The bytes that are added to the limit for models that read images, as OpenAI allows in a request."""
ANY_CONTEXT = 1 << 17
"""The context, in tokens, that is assumed for a model without a limit."""
BODIES_AT_ONCE = 64
"""The memory for all bodies that are being read, as a number of bodies of the largest size without images."""
IMAGE_BODIES_AT_ONCE = 8
"""The memory for images in all bodies that are being read, as a number of bodies of the largest size."""
DISCARDED, DISCARDING = 16 << 20, 3.0
"""The most bytes of a refused body that are still read, and the most seconds for it. If the connection closed while the
client is writing, the client would not see the reply."""
SMALL = 16 << 10
"""The most bytes of a body that is parsed in the event loop."""
LARGE_BODIES = 2
"""The most large bodies that are parsed at once, because their threads slow down the event loop."""
UNCOUNTED, UNMARKED = (bytes({*range(256)} - {*marks}) for marks in (b'",[{', b",[{"))
CONVERSATIONS = ("messages", "input")
"""Fields with the messages of a conversation, each of which takes at least one token of the context."""
JSON_TYPE = re.compile(r"application/([^/;]+\+)?json\s*(;.*)?", re.IGNORECASE)
SURROGATE = re.compile("[\ud800-\udfff]")
TOO_LONG = object()
"""Stands for an integer of more digits than Python reads."""
Model = TypeVar("Model")
ALREADY_VALIDATED = WrapValidator(lambda parsed_body, _: parsed_body)
Body = Annotated[Model, ALREADY_VALIDATED]
"""Type of a route's parameter that is the body. `BodyRoute` validates it; FastAPI only documents it."""


class ItemCount:
    """Counts the lists, objects and their items in a JSON text that arrives in parts, without parsing it.

    A megabyte takes 2 ms, while parsing and validating it may take 3 s.

    Attributes:
        items: the number of items so far.
    """

    def __init__(self) -> None:
        self.items = 0
        self._leftover = b""
        self._in_string = False
        self._has_strings: bool | None = None

    def add(self, piece: bytes) -> None:
        """Count the items of the next piece of the body."""
        if self._has_strings is None:  # in UTF-16, other characters have bytes of quotes, so strings are counted too
            piece = self._leftover + piece
            self._leftover = b""
            if len(piece) < 2:  # the encoding needs two bytes
                self._leftover = piece
                return
            self._has_strings = json.detect_encoding(piece[:4]).startswith("utf-8")
        unquoted_bytes = self._without_strings(piece) if self._has_strings else piece
        self.items += unquoted_bytes.count(b",") + unquoted_bytes.count(b"[") + unquoted_bytes.count(b"{")

    def _without_strings(self, piece: bytes) -> bytes:
        text = self._leftover + piece
        unpaired_backslashes = (len(text) - len(text.rstrip(b"\\"))) % 2
        # An unpaired backslash at the end escapes the first byte of the next piece.
        end = len(text) - unpaired_backslashes
        text, self._leftover = text[:end], text[end:]
        if b"\\" in text:
            text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
        text = text.translate(None, UNCOUNTED)
        pieces = text.replace(b'""', b"").split(b'"')  # two quotes in a row change nothing
        unquoted_pieces = pieces[self._in_string :: 2]
        self._in_string ^= len(pieces) % 2 == 0
        return b"".join(unquoted_pieces)


class BodyReader:
    """Reads the bodies of requests, with a limit for each and one for all that are being read.

    Args:
        context: tokens of the model's context; None for no limit.
        most_bytes: the largest body, in bytes; None for as much as the context and images need.
        model: what the validation needs to know of the served model.
    """

    def __init__(self, context: int | None, most_bytes: int | None = None, model: ServedModel = TEXT_MODEL) -> None:
        tokens = ANY_CONTEXT if context is None else context
        self._most_bytes = BYTES + BYTES_PER_TOKEN * tokens if most_bytes is None else most_bytes
        self._most_held_bytes = BODIES_AT_ONCE * self._most_bytes
        if model.reads_images and most_bytes is None:
            self._most_bytes += IMAGE_BYTES
            self._most_held_bytes += IMAGE_BODIES_AT_ONCE * IMAGE_BYTES
        self._model = model
        self._most_items = ITEMS + ITEMS_PER_TOKEN * tokens
        self._context = context
        self._held_bytes = 0
        self._turns = asyncio.Semaphore(LARGE_BODIES)

    async def read(self, request: Request, adapter: TypeAdapter[Any]) -> Any:
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
        return await read_request(partial(_read, body, adapter, self._context, self._model))

    async def _receive(self, request: Request, reading: ExitStack) -> bytes:
        """Receive the bytes of a body, which count toward the limit for all bodies until `reading` is closed.

        Raises:
            ServerError: the body is too large, or all bodies together are; up to `DISCARDED` more bytes are read first.
        """
        chunks = request.stream()
        body = list[bytes]()
        size = 0
        count = ItemCount()
        marks = 0
        counted_chunks = 0

        def release() -> None:
            self._held_bytes -= size

        reading.callback(release)
        refusal = self._refusal(int(request.headers.get("content-length", 0)), 0)
        while not refusal and (chunk := await anext(chunks, b"")):
            body.append(chunk)
            size += len(chunk)
            self._held_bytes += len(chunk)
            marks += len(chunk.translate(None, UNMARKED))
            if marks > self._most_items:  # some may be in strings: count exactly
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
        """The error for a body of which `size` bytes with `items` items have arrived; None if reading may continue."""
        if size > self._most_bytes:
            return _too_large(self._most_bytes, "bytes")
        if items > self._most_items:
            return _too_large(self._most_items, "items in its lists and objects")
        if self._held_bytes > self._most_held_bytes:
            message = f"the bodies of all requests take {self._held_bytes} bytes, which is too much; try again later"
            return ServerError(429, message, code="bodies_full", headers=AGAIN)
        return None


def _too_large(limit: int, unit: str) -> ServerError:
    message = f"the body has more than {limit} {unit}, which is the limit; send less at once"
    return ServerError(413, message, code="body_too_large", headers={"Connection": "close"})


class BodyRoute(APIRoute):
    """A route whose body the server's `BodyReader` reads."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """A handler that reads the body before the route's function is called."""
        handle = super().get_route_handler()
        hints = get_type_hints(self.endpoint, include_extras=True).values()
        bodies = [get_args(hint)[0] for hint in hints if ALREADY_VALIDATED in get_args(hint)]
        if not bodies:
            return handle
        adapter = TypeAdapter[Any](bodies[0])

        async def read_and_handle(request: Request) -> Response:
            body = await request.app.state.serving.bodies.read(request, adapter)
            return await handle(_ReadRequest(request.scope, body))

        return read_and_handle


class _ReadRequest(Request):
    """A request whose body has been read. FastAPI checks that `body` is not empty, and then calls `json`."""

    def __init__(self, scope: Scope, parsed_body: Any) -> None:
        super().__init__(scope)
        self._parsed_body = parsed_body

    async def body(self) -> bytes:
        return b"read"

    async def json(self) -> Any:
        return self._parsed_body


def _read(body: bytes, adapter: TypeAdapter[Any], context: int | None, model: ServedModel) -> Any:
    """Parse and validate a body.

    Raises:
        ServerError: the body is invalid; the message names the first mistake.
    """
    with collection_pause:
        parsed_body = _parse(body)
        for name in CONVERSATIONS:  # before the validation, because it takes no time
            messages = parsed_body.get(name) if isinstance(parsed_body, dict) else None
            if isinstance(messages, list) and context is not None and len(messages) > context:
                message = f"{name}: {len(messages)} do not fit into the model's context of {context} tokens; send fewer"
                raise ServerError(400, message, param=name, code="context_length_exceeded")
        _check_scalars(parsed_body)
        try:
            return adapter.validate_python(parsed_body, from_attributes=True, context=model)
        except ValidationError as error:
            raise refusal_of(error.errors(include_url=False)[0]) from None


def _parse(body: bytes) -> Any:
    """Parse a JSON text, with `TOO_LONG` in place of integers that Python does not read.

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


def _check_scalars(parsed_body: Any) -> None:
    """Refuse integers that are too long, and texts and names that are not Unicode.

    Raises:
        ServerError: there is such a value; the message names the place of the first one.
    """
    iterator_stack = [_parts([parsed_body])]
    path = list[Any]([0])
    while iterator_stack:  # keeps one iterator per level, because a body may be both deep and long
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


def _parts(container: dict[str, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the elements of a list, or the names and values of an object, each after its step in the path."""
    if isinstance(container, list):
        return iter(enumerate(container))
    return ((name, member) for name, value in container.items() for member in (name, value))
