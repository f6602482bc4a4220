"""A reply whose texts are being written: whole, or as a stream of server-sent events."""

import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Response
from sse_starlette import EventSourceResponse
from sse_starlette.sse import AppStatus

import drafttree
from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.errors import ServerError, as_server_error
from drafttree.interfaces.server.protocol.replies import EventModel, ReplyModel
from drafttree.interfaces.server.protocol.request_fields import SamplingFields, SeveralTexts, StreamOptions
from drafttree.interfaces.server.serving import ServingContext
from drafttree.interfaces.server.text_pieces import Piece

FINGERPRINT = f"drafttree-{drafttree.__version__}"
DONE = "[DONE]"
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The whole reply, or server-sent events where the request has `stream`",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
"""What a route's description has besides the type of its whole replies."""


def reply_head(kind: str, request: SamplingFields, serving: ServingContext) -> dict[str, Any]:
    """The fields that a reply and all chunks of a stream begin with.

    Args:
        kind: what the id begins with.
        request: names the model as the reply does.
        serving: the served model.
    """
    return {
        "id": f"{kind}-{uuid.uuid4().hex}",
        "created": int(time.time()),
        "model": request.model or serving.model_name,
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
        reads_thoughts: whether thinking that is sent back has an effect.
    """

    choices: Choices
    texts: Sequence[ReplyText]
    chunk_of: Callable[..., ReplyModel]
    whole_of: Callable[..., ReplyModel]
    reads_thoughts: bool = False

    async def response(self, request: SeveralTexts) -> Response:
        """The response to a request, which may want a stream."""
        headers = _warning(request, self.reads_thoughts)
        if request.stream:
            return stream_response(self._events(request.stream_options or StreamOptions()), headers)
        async with aclosing(self.choices.read()) as pieces:
            async for place, piece in pieces:
                self.texts[place].add(piece)
        reply = self.whole_of(choices=[text.whole for text in self.texts], usage=self.choices.usage)
        return Response(reply.json_text(), media_type="application/json", headers=headers)

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


class EventText(Protocol):
    """The only text of a reply whose stream is made of events of several kinds."""

    def begin(self) -> Sequence[EventModel]:
        """What a stream begins with."""
        ...

    def add(self, piece: Piece) -> Sequence[EventModel]:
        """What a piece adds; the last piece ends the stream."""
        ...

    def fail(self, error: ServerError) -> EventModel:
        """The event that ends a stream that goes on no more."""
        ...

    @property
    def whole(self) -> ReplyModel:
        """The whole reply."""
        ...


@dataclass(frozen=True)
class EventReply:
    """A reply of one text, whose stream is made of events of several kinds.

    Attributes:
        choices: the text as the engine writes it.
        text: the same text as the reply has it.
        headers: of the response.
        reads_thoughts: whether thinking that is sent back has an effect.
    """

    choices: Choices
    text: EventText
    headers: dict[str, str] = field(default_factory=dict)
    reads_thoughts: bool = False

    async def response(self, request: SamplingFields) -> Response:
        """The response to a request, which may want a stream."""
        headers = self.headers | _warning(request, self.reads_thoughts)
        if request.stream:
            return stream_response(self._events(), headers)
        async with aclosing(self.choices.read()) as pieces:
            async for _, piece in pieces:
                self.text.add(piece)
        return Response(self.text.whole.json_text(), media_type="application/json", headers=headers)

    async def _events(self) -> AsyncGenerator[dict[str, str]]:
        """The events; an error after the first one is the last one."""
        try:
            async with aclosing(self.choices.read()) as pieces:
                for begun in self.text.begin():
                    yield _event(begun)
                async for _, piece in pieces:
                    for added in self.text.add(piece):
                        yield _event(added)
        except Exception as error:
            yield _event(self.text.fail(as_server_error(error)))


def _event(event: EventModel) -> dict[str, str]:
    return {"event": event.type, "data": event.json_text()}


def _warning(request: SamplingFields, reads_thoughts: bool) -> dict[str, str]:
    """The header that names the fields of a request that have no effect, none where all have one."""
    names = ", ".join(sorted(set(request.without_effect(reads_thoughts=reads_thoughts))))
    return {"Warning": f'299 drafttree "without effect: {names}"'} if names else {}


def stream_response(events: AsyncIterable[Any], headers: dict[str, str] | None = None) -> EventSourceResponse:
    """A response of server-sent events; a server that shuts down lets it end by itself."""
    AppStatus.disable_automatic_graceful_drain()
    return EventSourceResponse(events, headers=headers, sep="\n")
