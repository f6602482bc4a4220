"""Errors as OpenAI's API words them: `{"error": {message, type, param, code}}`."""

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from drafttree.core.errors import ContextError, DraftTreeError, EngineClosedError

logger = logging.getLogger("drafttree")

INVALID, SERVER_ERROR = "invalid_request_error", "server_error"
STATUS_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error", 503: "overloaded_error"}


class ServerError(Exception):
    """A request that is answered by an error.

    Args:
        status: HTTP's.
        message: what is wrong, and what to do.
        param: the field of the request that is wrong.
        code: a word by which programs know the error.
        headers: of the reply.
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
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def body(self) -> dict[str, Any]:
        """The reply."""
        kind = STATUS_TYPES.get(self.status, INVALID if self.status < 500 else SERVER_ERROR)
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def as_server_error(error: Exception) -> ServerError:
    """The reply for what was raised; what nobody expected is logged, and its details stay here."""
    match error:
        case ServerError():
            return error
        case EngineClosedError():
            return ServerError(503, "the server is shutting down", code="shutting_down", headers={"Retry-After": "5"})
        case ContextError():
            return ServerError(400, str(error), code="context_length_exceeded")
        case DraftTreeError():
            return ServerError(400, str(error), code="invalid_value")
    logger.error("a request failed", exc_info=error)
    return ServerError(500, "the server failed to answer this request; its log says why", code="internal_error")


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of an application in this form."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        found = as_server_error(error)
        return JSONResponse(found.body, found.status, found.headers)

    async def answer_invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return await answer(request, _of_validation(error))

    async def answer_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        named = f"{error.detail}: {request.method} {request.url.path}"
        return await answer(request, ServerError(error.status_code, named, headers=error.headers))

    app.add_exception_handler(RequestValidationError, answer_invalid)
    app.add_exception_handler(HTTPException, answer_http)
    for kind in (ServerError, DraftTreeError, Exception):
        app.add_exception_handler(kind, answer)


def _of_validation(error: RequestValidationError) -> ServerError:
    """The first thing that is wrong with a body, and where."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    what = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return ServerError(400, f"the body is no JSON: {first.get('ctx', {}).get('error', what)}", code="invalid_json")
    message = f"{place}: {what}" if place else what
    return ServerError(400, message, param=place or None, code=first["type"])
