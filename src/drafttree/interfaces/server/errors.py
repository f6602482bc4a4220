"""Errors in the form of OpenAI's API, `{"error": {message, type, param, code}}`, or of Anthropic's on its routes."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from drafttree.core.errors import ContextError, DraftTreeError, EngineClosedError
from drafttree.interfaces.server.unsupported_fields import NO_THREADS

logger = logging.getLogger("drafttree")
request_id: ContextVar[str] = ContextVar("request_id", default="none")
"""The id of the request that the current task answers."""

AGAIN = {"Retry-After": "1"}
"""Header of a temporary refusal: the client may try again after a second."""
SHUTTING_DOWN = "shutting_down"
"""Finish reason of a text that is ended by the server's shutdown, and the code of its error."""
INVALID, SERVER_ERROR = "invalid_request_error", "server_error"
STATUS_CODES = {404: "not_found", 405: "method_not_allowed"}
STATUS_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "overloaded_error"}
ANTHROPIC_TYPES = {413: "request_too_large", 500: "api_error"}
LONGEST_NAME = 200
"""The most characters of a client's name in an error; longer names are cut."""
NO_OBJECT = "send a JSON object, with the header Content-Type: application/json"
BRANCH = "[as {}]"
"""Step in the location of pydantic's errors that names a member of a union, not a field of the request."""
INNER_STEP = re.compile(r"\[(key|as \w+)\]")
PLAIN = {
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "give an object"),
    "too_short": "give at least {min_length} item",
    "too_long": "give at most {max_length} items, not {length}",
    "missing": "this is required",
    "list_type": "give a list",
    "bool_type": "give true or false",
    "int_type": "give an integer",
    "float_type": "give a number",
    "finite_number": "give a finite number",
    "string_type": "give a text",
    "string_too_short": "give at least {min_length} character",
    "string_too_long": "give at most {max_length} characters",
    "string_pattern_mismatch": "give a name that matches {pattern}",
    "literal_error": "give {expected}",
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give {ge} or more",
    "less_than": "give less than {lt}",
    "less_than_equal": "give {le} or less",
}
"""Messages for pydantic's errors, by type. The wrong value is added if it is short."""
LONGEST_VALUE = 40
"""The longest value, in characters of JSON, that an error repeats."""
ANTHROPIC = "/v1/messages"
"""Requests to this path and to paths below it get errors in Anthropic's form."""


class ErrorBody(BaseModel):
    """What is wrong with a request."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """Every reply whose status is not 200."""

    error: ErrorBody


class AnthropicErrorBody(BaseModel):
    """What is wrong with a request, in Anthropic's form."""

    type: str
    message: str
    details: dict[str, str] | None = None


class AnthropicErrorReply(BaseModel):
    """Every reply of Anthropic's routes whose status is not 200, and the event that ends a failed stream."""

    type: Literal["error"]
    error: AnthropicErrorBody
    request_id: str


def is_anthropic(path: str) -> bool:
    """Whether a path is one of Anthropic's routes."""
    return path == ANTHROPIC or path.startswith(f"{ANTHROPIC}/")


class ServerError(Exception):
    """An error that becomes the reply to a request.

    Args:
        status: the HTTP status.
        message: what is wrong, and what to do.
        param: the field of the request that is wrong; None for none.
        code: identifies the error for programs; None for none.
        headers: headers of the reply.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the reply."""
        error_type = STATUS_TYPES.get(self.status, INVALID if self.status < 500 else SERVER_ERROR)
        message = _as_text(self.message)
        param = self.param and _as_text(self.param)
        return {"error": {"message": message, "type": error_type, "param": param, "code": self.code}}

    @property
    def anthropic_body(self) -> dict[str, Any]:
        """The JSON of the reply in Anthropic's form."""
        error = self.body["error"]
        message = error["message"]
        param = error["param"]
        if param and not message.startswith(param):
            message = f"{param}: {message}"
        error_body = {"type": ANTHROPIC_TYPES.get(self.status, error["type"]), "message": message}
        if self.code == NO_THREADS:
            error_body["details"] = {"error_code": NO_THREADS}
        return {"type": "error", "error": error_body, "request_id": request_id.get()}

    def response_to(self, path: str) -> JSONResponse:
        """The reply to a request for `path`, in OpenAI's or Anthropic's form."""
        return JSONResponse(self.anthropic_body if is_anthropic(path) else self.body, self.status, self.headers)


def _as_text(quoted: str) -> str:
    """A text that may quote a request, with lone surrogates escaped, because UTF-8 cannot encode them."""
    return quoted.encode(errors="backslashreplace").decode()


def as_server_error(error: Exception, request_line: str = "") -> ServerError:
    """Convert an exception to the error of a reply. An unexpected one is logged, and the reply does not describe it.

    Args:
        error: the exception.
        request_line: method and path of the request, for errors of the framework.
    """
    match error:
        case ServerError():
            return error
        case HTTPException(status_code=status):
            code = STATUS_CODES.get(status)
            return ServerError(status, f"{error.detail}: {request_line}", code=code, headers=error.headers)
        case EngineClosedError():
            return shutting_down()
        case ContextError():
            return ServerError(400, str(error), code="context_length_exceeded")
        case DraftTreeError():
            return ServerError(400, str(error), code="invalid_value")
    logger.error("the request %s failed", request_id.get(), exc_info=error)
    return ServerError(500, "the server failed to answer this request; its log says why", code="internal_error")


def shutting_down() -> ServerError:
    """The error (503) for requests that a server refuses because it shuts down."""
    return ServerError(503, "the server is shutting down", code=SHUTTING_DOWN, headers=AGAIN)


@contextmanager
def blaming(*fields: str) -> Iterator[None]:
    """Context manager: begin the messages of errors with the field of the request that is to blame.

    Args:
        *fields: names of fields. A message that begins with one of them stays as it is; others get the first in front.

    Raises:
        ServerError: the body of the `with` statement raises a `DraftTreeError`.
    """
    try:
        yield
    except DraftTreeError as error:
        server_error = as_server_error(error)
        server_error.param = next((field for field in fields if server_error.message.startswith(f"{field}: ")), None)
        if server_error.param is None:
            server_error.param = fields[0]
            server_error.message = f"{fields[0]}: {server_error.message}"
        raise server_error from None


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """The reply to a request whose handler raised an error."""
    path = request.url.path
    return as_server_error(error, f"{request.method} {path}").response_to(path)


def refusal_of(pydantic_error: Mapping[str, Any], names: Mapping[str, str] | None = None) -> ServerError:
    """Convert an error of pydantic; the message begins with the error's place in the request.

    Args:
        pydantic_error: the error, one of `ValidationError.errors()`.
        names: by a model's field, its name in the request, if that differs.
    """
    error_type = pydantic_error["type"]
    context = pydantic_error.get("ctx", {})
    steps = [(names or {}).get(step, step) for step in map(str, (*pydantic_error["loc"], *context.get("place", ())))]
    steps = [step for step in steps if not INNER_STEP.fullmatch(step)]
    shown_steps = [step if len(step) <= LONGEST_NAME else f"{step[:LONGEST_NAME]}..." for step in steps]
    path = ".".join(shown_steps)
    message = str(pydantic_error["msg"]).removeprefix("Value error, ")
    if error_type in PLAIN and not context.get("message"):  # an error of `mistake` has its own message
        value = pydantic_error.get("input")
        last_steps = steps[-1:]
        message = _plainly(error_type, context, value) or message
        value_text = json.dumps(value) if value is None or isinstance(value, str | int | float) else ""
        if value is None and not "".join(last_steps).isdecimal():
            message = f"this is required; {message}"
        if not error_type.startswith("too_") and 0 < len(value_text) <= LONGEST_VALUE:
            message += f", not {value_text}"
    if not path and error_type == "model_attributes_type":
        message = NO_OBJECT
    return ServerError(400, f"{path or 'the body'}: {message}", param=path or None, code=error_type)


def _plainly(error_type: str, context: Mapping[str, Any], value: object) -> str | None:
    """The message of `PLAIN` for a type of error; None if pydantic's context lacks a bound that it needs."""
    bounds = {name: _as_json(bound) for name, bound in context.items() if bound is not None}
    if isinstance(value, list | dict):
        bounds["length"] = len(value)
    try:
        return PLAIN[error_type].format_map(bounds)
    except KeyError:  # another release of pydantic may not give this bound
        return None


def _as_json(bound: object) -> object:
    """A bound in the notation of JSON: 1 for 1.0, and true for True."""
    if isinstance(bound, float) and bound.is_integer():
        return int(bound)
    return "true" if bound == "True" else bound
