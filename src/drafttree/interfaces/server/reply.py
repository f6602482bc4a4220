"""Replies of generated texts: whole, or as a stream of server-sent events.

Each API has a writer, which makes both the whole reply and the events of a stream. Tests validate them with the types
of OpenAI's and Anthropic's Python packages.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol

from fastapi import Response
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json
from sse_starlette import EventSourceResponse

import drafttree
from drafttree.engine.generation import Chunk
from drafttree.interfaces.server.admission import read_request
from drafttree.interfaces.server.errors import ServerError, as_server_error
from drafttree.interfaces.server.fields import RequestModel
from drafttree.interfaces.server.request import shown_otherwise
from drafttree.interfaces.server.sampling import SamplingFields, SeveralTexts, StreamOptions
from drafttree.interfaces.server.serving import ServingContext
from drafttree.interfaces.server.texts import Json, Texts

STREAMED: dict[int | str, Json] = {
    200: {
        "description": "The whole reply, or server-sent events where the request has `stream`",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
"""OpenAPI description of a route's replies, except the type of whole replies."""

MOST_NAMED = 20
"""The most names in a `Warning` header, because proxies and clients refuse long headers."""


class Described(BaseModel):
    """OpenAPI description of a reply: its type in the API's own package, and our additional fields."""

    model_config = ConfigDict(extra="allow")

    lossless: bool
    lossy: str | None = None
    quantization: str | None = None
    timings: dict[str, float]


class Writer(Protocol):
    """Writes the texts of a request in an API's form."""

    done: bool
    """Whether `[DONE]` ends a successful stream."""

    def begin(self) -> Iterable[Json]:
        """The first events of a stream."""
        ...

    def add(self, text_index: int, chunk: Chunk) -> Iterable[Json]:
        """Yield the events for a chunk of a text; each is sent before the next one is made."""
        ...

    def fail(self, error: ServerError) -> Json:
        """The event that ends a failed stream."""
        ...

    @property
    def whole(self) -> Json:
        """The whole reply."""
        ...


class Choice(Protocol):
    """Writes one choice of OpenAI's completions."""

    def add(self, chunk: Chunk) -> Iterable[Json]:
        """Yield the choices of stream chunks for a chunk of the text."""
        ...

    @property
    def whole(self) -> Json:
        """The choice in the whole reply."""
        ...


class Completions:
    """Writes OpenAI's completions: a list of choices, or chunks with one choice each.

    Args:
        request: the client's request.
        serving: the served model.
        texts: the texts of the request.
        choices: the writer of each text.
        chat: whether the request is a chat. In a chat, the first chunk of each answer has the role.
    """

    done = True

    def __init__(
        self, request: SeveralTexts, serving: ServingContext, texts: Texts, choices: Sequence[Choice], *, chat: bool
    ) -> None:
        self._texts = texts
        self._choices = choices
        self._options = request.stream_options or StreamOptions()
        self._running = len(choices)
        self._chat = chat
        self._kinds = ("chat.completion", "chat.completion.chunk") if chat else ("text_completion",) * 2
        self._head = {
            **reply_head("chatcmpl-" if chat else "cmpl-", request, serving),
            "created": int(time.time()),
            "system_fingerprint": f"drafttree-{drafttree.__version__}",
        }

    def begin(self) -> Iterable[Json]:
        opening_choice = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return [self._chunk(index, opening_choice) for index in range(len(self._choices))] if self._chat else []

    def add(self, text_index: int, chunk: Chunk) -> Iterable[Json]:
        self._running -= chunk.finish_reason is not None
        yield from (self._chunk(text_index, choice_delta) for choice_delta in self._choices[text_index].add(chunk))
        if not self._running and self._options.include_usage:
            yield {**self._head, "object": self._kinds[1], "choices": [], **self._costs}

    def fail(self, error: ServerError) -> Json:
        return error.body

    @property
    def whole(self) -> Json:
        choices = [{"index": index, **choice.whole} for index, choice in enumerate(self._choices)]
        return {**self._head, "object": self._kinds[0], "choices": choices, **self._costs}

    @property
    def _costs(self) -> Json:
        return {"usage": self._texts.usage.openai, "timings": self._texts.timings}

    def _chunk(self, text_index: int, choice: Json) -> Json:
        costs: Json = {"usage": None} if self._options.include_usage else {}
        if self._options.continuous_usage_stats:
            costs = {"usage": self._texts.usage.openai}
        if choice["finish_reason"] and not self._running and not self._options.include_usage:  # else usage follows
            costs |= {"timings": self._texts.timings}
        return {**self._head, "object": self._kinds[1], "choices": [{"index": text_index, **choice}], **costs}


def reply_head(prefix: str, request: SamplingFields, serving: ServingContext) -> Json:
    """The fields of every reply: an id with a prefix, the model's name, and whether its texts are lossless."""
    model = request.model or serving.settings.model_name
    return {"id": f"{prefix}{uuid.uuid4().hex}", "model": model, **serving.decoder.fidelity.to_json()}


async def warning(request: RequestModel, serving: ServingContext, *, enforced: bool = True) -> dict[str, str]:
    """The `Warning` header. It names fields and tools without effect, and parts that the model sees as text.

    Args:
        request: the client's request.
        serving: the served model.
        enforced: whether tool calls must follow the schemas of all tools; if not, the header says so.

    Returns:
        The header; empty if there is nothing to name.
    """
    reads_thoughts = serving.dialect.thought_name is not None

    def listed() -> list[str]:
        idle_fields = request.without_effect(reads_thoughts=reads_thoughts)
        other_forms = shown_otherwise(request)
        return [*_named("without effect", idle_fields), *_named("shown as text", other_forms)]

    notes = await read_request(listed)
    notes += ["not enforced: schemas of tools"] * (not enforced)
    return {"Warning": ", ".join(f'299 drafttree "{note}"' for note in notes)} if notes else {}


def _named(label: str, names: Iterable[str]) -> list[str]:
    """A list of one note with the first `MOST_NAMED` names; empty without names."""
    names = sorted(set(names))
    remainder = [f"and {len(names) - MOST_NAMED} more"] * (len(names) > MOST_NAMED)
    return [f"{label}: {', '.join([*names[:MOST_NAMED], *remainder])}"] * bool(names)


async def reply(request: SamplingFields, serving: ServingContext, texts: Texts, writer: Writer) -> Response:
    """The response to a request: a stream if the request asks for one, else the whole reply after all texts."""
    headers = await warning(request, serving, enforced=texts.enforced)
    if request.stream:
        return EventSourceResponse(_events(texts, writer), headers=headers, sep="\n")
    async with aclosing(texts.read()) as chunks:
        async for index, chunk in chunks:
            for _ in writer.add(index, chunk):
                pass
    return Response(_as_json(writer.whole), media_type="application/json", headers=headers)


def _as_json(json_value: Json) -> bytes:
    """Write a reply or an event as JSON. Infinite numbers, such as overflows in a call's arguments, become null."""
    return to_json(json_value, inf_nan_mode="null")


async def _events(texts: Texts, writer: Writer) -> AsyncGenerator[dict[str, str]]:
    """The events of a stream. An event's name is its type, if it has one. An error ends the stream."""

    def event(event_fields: Json) -> dict[str, str]:
        return ({"event": event_fields["type"]} if "type" in event_fields else {}) | {
            "data": _as_json(event_fields).decode()
        }

    try:
        async with aclosing(texts.read()) as chunks:
            for opening_event in writer.begin():
                yield event(opening_event)
            async for index, chunk in chunks:
                for reply_event in writer.add(index, chunk):
                    yield event(reply_event)
    except Exception as error:
        yield event(writer.fail(as_server_error(error)))
        return
    if writer.done:
        yield {"data": "[DONE]"}
