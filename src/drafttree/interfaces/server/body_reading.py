"""Bodies as requests: read beside the event loop where they are large, few at a time, up to the first mistake."""

import json
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError, WrapValidator
from starlette.types import Receive, Scope

from drafttree.core.machine_memory import collection_pause
from drafttree.interfaces.server.admission import open_request, read_request
from drafttree.interfaces.server.errors import ServerError

SMALL = 16 << 10
"""Bytes of a body that is read without a thread of its own."""

CONVERSATIONS = ("messages", "input")
"""The fields that have the messages of a conversation, each of which takes a token or more of the context."""
Model = TypeVar("Model")
Body = Annotated[Model, WrapValidator(lambda given, check: given.value if isinstance(given, _Read) else check(given))]
"""The type of a parameter that is a body, which the route has read."""


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
    """A request to a route.

    Args:
        scope: the server's.
        receive: the server's channel of what the client sends.
        kind: what its body must be.
    """

    def __init__(self, scope: Scope, receive: Receive, kind: TypeAdapter[Any]) -> None:
        super().__init__(scope, receive)
        self._kind = kind

    async def json(self) -> _Read:
        """The body as the route wants it.

        Raises:
            JSONDecodeError: it is not JSON.
            ServerError: it is compressed, or JSON that is not read.
            RequestValidationError: it is not what the route wants.
        """
        body = await self.body()
        if (coding := self.headers.get("content-encoding", "identity").lower()) != "identity":
            message = f"the body has the Content-Encoding {coding!r}, which is not read; send it as it is"
            raise ServerError(415, message, code="content_encoding")
        serving = self.app.state.serving
        context = serving.decoder.target.context
        if len(body) > SMALL:
            turns, request = serving.large_bodies, open_request()
            assert request  # `ClientPresence` opens it
            await turns.acquire()
            request.reading.callback(turns.release)
            request.large = True
        found = await read_request(partial(_read, body, self._kind, context))
        self._body = b""  # streams last long
        return _Read(found)


def _read(body: bytes, kind: TypeAdapter[Any], context: int | None) -> Any:
    with collection_pause:
        return _made(body, kind, context)


def _made(body: bytes, kind: TypeAdapter[Any], context: int | None) -> Any:
    try:
        given = json.loads(body)
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError:
        raise ServerError(400, "the body is not UTF-8 text", code="invalid_utf8") from None
    except RecursionError:
        raise ServerError(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError:
        place = ".".join(map(str, _place_of_long_integer(body)))
        what = f"this is an integer of more than {sys.get_int_max_str_digits()} digits, which is not read"
        message = f"{place or 'the body'}: {what}"
        raise ServerError(400, message, param=place or None, code="int_parsing_size") from None
    for name in CONVERSATIONS:
        messages = given.get(name) if isinstance(given, dict) else None
        if isinstance(messages, list) and context is not None and len(messages) > context:
            message = f"{name}: {len(messages)} do not fit into the model's context of {context} tokens; send fewer"
            raise ServerError(400, message, param=name, code="context_length_exceeded")
    try:
        return kind.validate_python(given, from_attributes=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RequestValidationError([{**first, "loc": ("body", *first["loc"])}], body=given) from None


def _place_of_long_integer(body: bytes) -> tuple[str | int, ...]:
    """The steps to an integer that Python's parser refuses; none where what comes behind it is no JSON."""
    most, long = sys.get_int_max_str_digits(), object()
    try:
        found = json.loads(body, parse_int=lambda digits: long if len(digits.lstrip("-")) > most else 0)
    except (ValueError, RecursionError):
        return ()
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), found)]
    while waiting:
        place, part = waiting.pop()
        if part is long:
            return place
        steps = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
        waiting += [((*place, step), value) for step, value in steps]
    return ()
