"""A reply as server-sent events: its chunks, then `[DONE]`."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus

from drafttree.interfaces.server.errors import as_server_error
from drafttree.interfaces.server.protocol.reply_model import ReplyModel

DONE = "[DONE]"


def event_stream(chunks: AsyncGenerator[ReplyModel]) -> EventSourceResponse:
    """A response that sends chunks as they come.

    A server that shuts down lets running streams end by themselves. An error after the first byte is one more event.
    """
    AppStatus.disable_automatic_graceful_drain()
    return EventSourceResponse(_events(chunks), sep="\n")


async def _events(chunks: AsyncGenerator[ReplyModel]) -> AsyncGenerator[dict[str, str]]:
    async with aclosing(chunks):
        try:
            async for chunk in chunks:
                yield {"data": chunk.json_text()}
        except Exception as error:
            yield {"data": json.dumps(as_server_error(error).body)}
            return
    yield {"data": DONE}
