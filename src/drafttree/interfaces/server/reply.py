"""A reply whose texts are being written: as a stream of chunks, or whole."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import Response

from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.event_stream import event_stream
from drafttree.interfaces.server.protocol.reply_model import ReplyModel
from drafttree.interfaces.server.protocol.sampling_fields import SamplingFields, StreamOptions
from drafttree.interfaces.server.text_pieces import Piece

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
