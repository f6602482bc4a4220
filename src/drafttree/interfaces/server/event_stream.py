"""A reply as server-sent events: its chunks, then `[DONE]`."""

import json
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from typing import Any

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus

from drafttree.interfaces.server.errors import as_server_error
from drafttree.interfaces.server.protocol.reply_model import ReplyModel

DONE = "[DONE]"


def event_stream(chunks: AsyncGenerator[ReplyModel]) -> EventSourceResponse:
    """A response that sends chunks as they come; an error after the first byte is one more event."""
    return stream_response(_events(chunks))


def stream_response(events: AsyncIterable[Any]) -> EventSourceResponse:
    """A response of server-sent events; a server that shuts down lets it end by itself."""
    AppStatus.disable_automatic_graceful_drain()
    return EventSourceResponse(events, sep="\n")


async def _events(chunks: AsyncGenerator[ReplyModel]) -> AsyncGenerator[dict[str, str]]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield {"data": chunk.json_text()}
        except Exception as error:
            yield {"data": json.dumps(as_server_error(error).body)}
            return
    yield {"data": DONE}
