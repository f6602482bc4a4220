"""Gives each request an id, which its reply carries, and logs a line per request."""

import logging
import re
import time
import uuid
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drafttree.interfaces.server.errors import as_server_error, is_anthropic, request_id

logger = logging.getLogger("drafttree.access")
ID = re.compile(r"[!-~]{1,128}")
"""Accepted ids from clients: printable ASCII, because they are logged unchanged."""
CLIENT_LEFT = 499
"""Logged status, as in nginx, if the client disconnected before the answer began."""


class RequestLog:
    """Outermost middleware: gives every request an id, the client's `x-request-id` or a new one, and logs its end.

    It also answers requests that raise an unhandled exception.

    Args:
        app: the application.
        lines: whether to log a line for each request. The line omits the query, which may have secrets.
    """

    def __init__(self, app: ASGIApp, *, lines: bool) -> None:
        self._app = app
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header_id = Headers(scope=scope).get("x-request-id", "")
        start_time = time.perf_counter()
        status = CLIENT_LEFT
        effective_id = header_id if ID.fullmatch(header_id) else f"req_{uuid.uuid4().hex}"

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = effective_id
                if is_anthropic(scope["path"]):
                    headers["request-id"] = effective_id
            await send(message)

        token = request_id.set(effective_id)
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            if status != CLIENT_LEFT:  # a part of the answer was sent: break the connection
                raise
            await as_server_error(error).response_to(scope["path"])(scope, receive, send_with_id)
        finally:
            request_id.reset(token)
            if self._lines:
                client = quote((scope.get("client") or ("-",))[0], safe=":/")  # a proxy may pass on any text
                request_line = f"{scope['method']} {quote(scope['path'])}"
                logger.info(
                    '%s "%s" %d %.3fs %s', client, request_line, status, time.perf_counter() - start_time, effective_id
                )
