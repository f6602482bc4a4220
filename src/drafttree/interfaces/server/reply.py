"""A reply whose texts are being written: whole, or as a stream of server-sent events."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Response
from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus

import drafttree
from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.errors import as_server_error
from drafttree.interfaces.server.protocol.replies import ReplyModel
from drafttree.interfaces.server.protocol.request_fields import SamplingFields, StreamOptions
from drafttree.interfaces.server.serving import ServingContext
from drafttree.interfaces.server.text_pieces import Piece

FINGERPRINT = f"drafttree-{drafttree.__version__}"
DONE = "[DONE]"
_EVENTS = {"type": "string", "description": "with `stream`: each chunk as the `data` of an event, then `[DONE]`"}
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENTS}}}}
"""What the description of a route says of streams."""


def reply_head(kind: str, serving: ServingContext) -> dict[str, Any]:
    """The fields that a reply and all chunks of a stream begin with.

    Args:
        kind: what the id begins with.
        serving: the served model.
    """
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": serving.model_name,
        "system_fingerprint": FINGERPRINT,
        **serving.decoder.fidelity.to_json(),
    }


class ReplyText(Protocol):
    """One text of a reply."""

    def begin(self) -> Sequence[ReplyModel]:
        """What a stream begins with."""
        ...

    def add(self, piece: Piece) -> Sequence[ReplyModel]:
        """What a piece adds, a chunk each."""
        ...

    @property
    def whole(self) -> ReplyModel:
        """The whole text."""
        ...


@dataclass(frozen=True)
class Reply:
    """A reply.

    Attributes:
        choices: the texts as the engine writes them.
        texts: the same texts as the reply has them.
        chunk_of: makes a chunk of `choices` and perhaps `usage`.
        whole_of: makes the whole reply of the same.
    """

    choices: Choices
    texts: Sequence[ReplyText]
    chunk_of: Callable[..., ReplyModel]
    whole_of: Callable[..., ReplyModel]

    async def response(self, request: SamplingFields) -> Response:
        """The response to a request, which may want a stream."""
        if request.stream:
            return stream_response(self._events(request.stream_options or StreamOptions()))
        async with aclosing(self.choices.read()) as pieces:
            async for place, piece in pieces:
                self.texts[place].add(piece)
        reply = self.whole_of(choices=[text.whole for text in self.texts], usage=self.choices.usage)
        return Response(reply.json_text(), media_type="application/json")

    async def _events(self, options: StreamOptions) -> AsyncGenerator[dict[str, str]]:
        """The chunks, then `[DONE]`; an error after the first byte is one more event."""
        async with aclosing(self._chunks(options)) as chunks:
            try:
                async for chunk in chunks:
                    yield {"data": chunk.json_text()}
            except Exception as error:
                yield {"data": json.dumps(as_server_error(error).body)}
                return
        yield {"data": DONE}

    async def _chunks(self, options: StreamOptions) -> AsyncGenerator[ReplyModel]:
        async with aclosing(self.choices.read()) as pieces:
            for text in self.texts:
                for begun in text.begin():
                    yield self.chunk_of(choices=[begun], **self._usage(options))
            async for place, piece in pieces:
                for added in self.texts[place].add(piece):
                    yield self.chunk_of(choices=[added], **self._usage(options))
        if options.include_usage:
            yield self.chunk_of(choices=[], usage=self.choices.usage)

    def _usage(self, options: StreamOptions) -> dict[str, Any]:
        """The usage that a chunk has beside its choices: that so far, none, or no such field."""
        if options.continuous_usage_stats:
            return {"usage": self.choices.usage}
        return {"usage": None} if options.include_usage else {}


def stream_response(events: AsyncIterable[Any]) -> EventSourceResponse:
    """A response of server-sent events; a server that shuts down lets it end by itself."""
    AppStatus.disable_automatic_graceful_drain()
    return EventSourceResponse(events, sep="\n")
