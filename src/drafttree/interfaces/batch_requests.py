"""Lines of `drafttree batch` that are requests of OpenAI's batches: "custom_id", "method", "url" and "body".

The server's application answers them in this process, so replies are the same as from `drafttree serve`.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio.from_thread import start_blocking_portal
from httpx import ASGITransport, AsyncClient

from drafttree.core.errors import InputError
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.loading.names import target_name

if TYPE_CHECKING:
    from drafttree.engine import Decoder

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
JSON = {"Content-Type": "application/json"}
UNBOUNDED = 1 << 40
"""Limit of the application's waiting texts, so large that no line is refused, whatever its `n`."""


class RequestLines:
    """The server's application, with an event loop of its own that answers requests.

    Args:
        decoder: writes the texts.
        names: model names that requests may use; if empty, the target's own name.
        max_batch: the most texts at once.
    """

    def __init__(self, decoder: "Decoder", names: Sequence[str], max_batch: int) -> None:
        model, *other_names = names or [target_name(decoder.target)]
        limits = {"max_batch": max_batch, "max_queue": UNBOUNDED, "max_token_gap": math.inf}
        app = create_app(decoder, ServerSettings(model, other_names=tuple(other_names), **limits))
        transport = ASGITransport(app, raise_app_exceptions=False)
        self._client = AsyncClient(transport=transport, base_url="http://localhost", timeout=None)
        self._ends = ExitStack()
        self._portal = self._ends.enter_context(start_blocking_portal())
        self._ends.callback(app.state.serving.engine.close)  # it ends before the event loop, which waits for all texts

    def submit(self, entry: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
        """Send the request of a line; return a function that waits for its reply.

        Raises:
            InputError: the line is malformed in a way that the server would not notice.
        """
        custom_id = entry.get("custom_id")
        method = entry.get("method")
        url = entry.get("url")
        body = entry.get("body")
        if not isinstance(custom_id, str):
            raise InputError(f"custom_id is {custom_id!r}; give a string, which the reply repeats")
        if method != "POST":
            raise InputError(f"method is {method!r}; give 'POST'")
        if url not in URLS:
            raise InputError(f"url is {url!r}; give one of {', '.join(URLS)}")
        if not isinstance(body, dict):
            raise InputError("body is not an object; give the request's body")
        if body.get("stream"):
            raise InputError("body.stream is set, but a batch has no streams; leave it out")
        reply_future = self._portal.start_task_soon(
            partial(self._client.post, url, content=json.dumps(body), headers=JSON)
        )

        def wait() -> dict[str, Any]:
            reply = reply_future.result()
            response = {
                "status_code": reply.status_code,
                "request_id": reply.headers["x-request-id"],
                "body": reply.json(),
            }
            return {"response": response, "error": None}

        return wait

    def close(self) -> None:
        """Cancel all texts, and end the event loop."""
        self._ends.close()
