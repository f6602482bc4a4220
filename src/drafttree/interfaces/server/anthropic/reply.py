"""/v1/messages: the answer of a chat in the form of Anthropic's API."""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import from_json

from drafttree.engine.generation import Chunk
from drafttree.interfaces.server.admission import read_request
from drafttree.interfaces.server.anthropic.request import CountTokensRequest, MessagesRequest
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.chat import begin_answers, prompt_of
from drafttree.interfaces.server.dialect.reader import CallArguments, CallBegun, Said, Thought
from drafttree.interfaces.server.errors import ANTHROPIC, AnthropicErrorReply, ServerError
from drafttree.interfaces.server.reply import STREAMED, Described, reply, reply_head, warning
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.texts import Ended, Json, Texts

ERRORS = {status: {"model": AnthropicErrorReply, "description": "An error"} for status in ("4XX", "5XX")}
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
router = APIRouter(route_class=BodyRoute, prefix=ANTHROPIC, tags=["messages"], responses={**ERRORS})


class MessageReply(Described):
    """`anthropic.types.Message`, with the fields below; thinking needs no signature to be sent back."""


@router.post("", response_model=MessageReply, responses=STREAMED)
async def write(request: Body[MessagesRequest], serving: Serving) -> Response:
    """Answer a conversation, at once or as a stream of events."""
    _check_thinking(request, serving)
    texts = await begin_answers(await read_request(request.as_chat), serving)
    return await reply(request, serving, texts, MessageText(request, serving, texts))


@router.post("/count_tokens")
async def count_tokens(request: Body[CountTokensRequest], serving: Serving, response: Response) -> dict[str, int]:
    """Count the tokens of a conversation, up to where the next message begins."""
    serving.check_model(request.model)
    _check_thinking(request, serving)
    prompt = await prompt_of(await read_request(request.as_chat), serving)
    response.headers.update(await warning(request, serving))
    return {"input_tokens": prompt.length}


def _check_thinking(request: CountTokensRequest, serving: ServingContext) -> None:
    """Refuse thinking for a model without it.

    Raises:
        ServerError: the request enables thinking, but the chat template does not support it.
    """
    dialect = serving.dialect
    thinking = request.thinking
    if thinking and thinking.type == "enabled" and not dialect.thinking and not dialect.takes_effort:
        raise ServerError(400, "thinking is enabled, but the model's chat template does not support it; leave it out")


class MessageText:
    """Writes a message: its blocks, each with the events around it."""

    done = False

    def __init__(self, request: MessagesRequest, serving: ServingContext, texts: Texts) -> None:
        self._texts = texts
        self._stop_strings = request.stop_strings
        self._content = list[Json]()
        self._input = ""
        self.whole: Json = {
            **reply_head("msg_", request, serving),
            "type": "message",
            "role": "assistant",
            "content": self._content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage,
        }

    def begin(self) -> Iterator[Json]:
        yield {"type": "message_start", "message": self.whole}

    def add(self, text_index: int, chunk: Chunk) -> Iterator[Json]:
        for answer_part, _ in self._texts.all[text_index].parts(chunk):
            match answer_part:
                case Thought(text=text):
                    yield from self._write("thinking", text)
                case Said(text=text):
                    yield from self._write("text", text)
                case CallBegun(name=name, id=id_):
                    yield from self._open("tool_use", id=id_, name=name, input={})
                case CallArguments(text=text):
                    self._input += text
                    yield self._event("content_block_delta", delta={"type": "input_json_delta", "partial_json": text})
                case Ended(reason=reason):
                    stopped_by = chunk.stopped_by  # perhaps the model's end of a turn, not the client's
                    yield from self._end(reason, stopped_by if stopped_by in self._stop_strings else None)
                case None:  # there are no log-probabilities
                    pass

    def fail(self, error: ServerError) -> Json:
        return error.anthropic_body

    def _write(self, block_type: str, text: str) -> Iterator[Json]:
        """Yield the events that add text to a block of text or thinking; if no such block is open, begin one."""
        if not self._content or self._content[-1]["type"] != block_type:
            yield from self._open(
                block_type, **{block_type: ""}, **({"signature": ""} if block_type == "thinking" else {})
            )
        self._content[-1][block_type] += text
        yield self._event("content_block_delta", delta={"type": f"{block_type}_delta", block_type: text})

    def _open(self, block_type: str, **fields: Any) -> Iterator[Json]:
        """Yield the events that end the open block and begin a new one."""
        yield from self._close()
        self._content.append({"type": block_type, **fields})
        yield self._event("content_block_start", content_block=self._content[-1])

    def _close(self) -> Iterator[Json]:
        """Yield the events that end the open block, if there is one."""
        if self._content:
            if self._content[-1]["type"] == "tool_use":
                self._content[-1]["input"] = _read_input(self._input)
                self._input = ""
            yield self._event("content_block_stop")

    def _end(self, reason: str, stopped_by: str | None) -> Iterator[Json]:
        yield from self._close()
        stop_reason = STOP_REASONS[reason] if stopped_by is None else "stop_sequence"
        delta = {"stop_reason": stop_reason, "stop_sequence": stopped_by}
        costs = {"usage": self._usage, "timings": self._texts.timings}
        self.whole |= {**delta, **costs}
        yield {"type": "message_delta", "delta": delta, **costs}
        yield {"type": "message_stop"}

    def _event(self, event_type: str, **fields: Any) -> Json:
        """An event of the last block."""
        return {"type": event_type, "index": len(self._content) - 1, **fields}

    @property
    def _usage(self) -> Json:
        usage = self._texts.usage
        return {
            "input_tokens": usage.prompt - usage.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
            "output_tokens": usage.generated,
        }


def _read_input(text: str) -> Json:
    """Parse the input of a call; if it was cut short, parse the part that Anthropic's client would."""
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return {}
