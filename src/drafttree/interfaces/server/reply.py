"""A reply whose texts are being written: as a stream of chunks, or whole."""

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

DONE = "[DONE]"
FINGERPRINT = f"drafttree-{drafttree.__version__}"
ChunkOf = Callable[..., ReplyModel]
"""Makes a chunk, or a whole reply, of `choices` and perhaps `usage`."""


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
        texts: the same as the reply has them.
        chunk_of: makes a chunk.
        whole_of: makes the whole reply.
    """

    choices: Choices
    texts: Sequence[ReplyText]
    chunk_of: ChunkOf
    whole_of: ChunkOf

    async def response(self, request: SamplingFields) -> Response:
        """The response to a request, which may want a stream."""
        if request.stream:
            return event_stream(self._chunks(request.stream_options or StreamOptions()))
        async with aclosing(self.choices.read()) as pieces:
            async for place, piece in pieces:
                self.texts[place].add(piece)
        reply = self.whole_of(choices=[text.whole for text in self.texts], usage=self.choices.usage)
        return Response(reply.json_text(), media_type="application/json")

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


def reply_head(kind: str, serving: ServingContext) -> dict[str, Any]:
    """The fields that say which reply it is.

    Args:
        kind: what its id begins with.
        serving: the served model.
    """
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": serving.model_name,
        "system_fingerprint": FINGERPRINT,
        **serving.decoder.fidelity.to_json(),
    }


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
