"""A response as its text makes it: for a stream, and as a whole."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from drafttree.interfaces.server.answer import Answer
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.protocol.replies import (
    ChatChunkChoice,
    FinishReason,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from drafttree.interfaces.server.responses.replies import (
    ArgumentsDelta,
    ArgumentsDone,
    IncompleteDetails,
    InputTokensDetails,
    ItemEvent,
    ItemStatus,
    ModelResponse,
    OutputCall,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputText,
    OutputTokensDetails,
    PartEvent,
    ReasoningText,
    ResponseEvent,
    ResponseFailure,
    ResponseUsage,
    Score,
    StatusEvent,
    TextDelta,
    TextDone,
    ThoughtDelta,
    ThoughtDone,
    TopScore,
)
from drafttree.interfaces.server.text_pieces import Piece

Event = TypeVar("Event", bound=ResponseEvent)


class ResponseText:
    """A response while it is written.

    Args:
        answer: the answer of the chat that the response is made of.
        head: the fields that the response begins with and keeps.
        usage: tells the tokens so far.
    """

    def __init__(self, answer: Answer, head: dict[str, Any], usage: Callable[[], Usage]) -> None:
        self._answer, self._usage = answer, usage
        self.whole = ModelResponse.model_validate(
            {**head, "status": "in_progress", "output": [], "error": None, "incomplete_details": None, "usage": None}
        )
        self._events = 0

    def begin(self) -> list[ResponseEvent]:
        """What a stream begins with."""
        return [self._status("created"), self._status("in_progress")]

    def add(self, piece: Piece) -> list[ResponseEvent]:
        """What a piece of text adds; the last one completes the response."""
        return [event for chunk in self._answer.add(piece) for event in self._read(chunk)]

    def fail(self, error: ServerError) -> ResponseEvent:
        """The event that ends a stream that goes on no more."""
        code = "invalid_prompt" if error.status < 500 else "server_error"
        self.whole.status, self.whole.error = "failed", ResponseFailure(code=code, message=error.message)
        return self._status("failed")

    def _read(self, chunk: ChatChunkChoice) -> Iterator[ResponseEvent]:
        """The events of a chunk of the answer."""
        if chunk.delta.reasoning_content is not None:
            yield from self._think(chunk.delta.reasoning_content)
        if chunk.delta.content is not None:
            yield from self._say(chunk.delta.content, chunk.logprobs.content if chunk.logprobs else [])
        for call in chunk.delta.tool_calls or ():
            yield from self._call(call)
        if chunk.finish_reason is not None:
            yield from self._end(chunk.finish_reason)

    def _think(self, text: str) -> Iterator[ResponseEvent]:
        item = self._open
        if not isinstance(item, OutputReasoning):
            yield from self._close("completed")
            item = OutputReasoning(type="reasoning", id=_new_id("rs"), status="in_progress", summary=[], content=[])
            yield from self._add(item)
            part = ReasoningText(type="reasoning_text", text="")
            yield self._event(PartEvent, "content_part.added", **self._part, part=part.model_copy())
            item.content = [part]
        item.content[0].text += text
        yield self._event(ThoughtDelta, "reasoning_text.delta", **self._part, delta=text)

    def _say(self, text: str, scores: Sequence[TokenLogprob] = ()) -> Iterator[ResponseEvent]:
        message = self._open
        if not isinstance(message, OutputMessage):
            yield from self._close("completed")
            message = OutputMessage(
                type="message", id=_new_id("msg"), status="in_progress", role="assistant", content=[]
            )
            yield from self._add(message)
            part = OutputText(type="output_text", text="", annotations=[], logprobs=[])
            yield self._event(PartEvent, "content_part.added", **self._part, part=part.model_copy())
            message.content = [part]
        (part,) = message.content
        part.text += text
        part.logprobs = [*part.logprobs, *scores]
        if text:
            yield self._event(TextDelta, "output_text.delta", **self._part, delta=text, logprobs=_scores(scores))

    def _call(self, delta: ToolCallDelta) -> Iterator[ResponseEvent]:
        if delta.id is not None:
            yield from self._close("completed")
            name = delta.function.name or ""
            call = OutputCall(
                type="function_call",
                id=_new_id("fc"),
                status="in_progress",
                call_id=delta.id,
                name=name,
                arguments="",
            )
            yield from self._add(call)
        call = self._open
        assert isinstance(call, OutputCall)  # a delta without an id goes on with the latest call
        if text := delta.function.arguments:
            call.arguments += text
            yield self._event(ArgumentsDelta, "function_call_arguments.delta", **self._item, delta=text)

    def _end(self, reason: FinishReason) -> Iterator[ResponseEvent]:
        """Complete the response, which has one item at least."""
        if not self.whole.output:
            yield from self._say("")
        status = "incomplete" if reason == "length" else "completed"
        cut = reason == "stop" and isinstance(self._open, OutputCall)
        yield from self._close("incomplete" if cut else status)
        self.whole.status, self.whole.usage = status, _usage(self._usage())
        if status == "incomplete":
            self.whole.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        else:
            self.whole.completed_at = int(time.time())
        yield self._status(status)

    @property
    def _open(self) -> OutputItem | None:
        """The item that is being written."""
        return self.whole.output[-1] if self.whole.output else None

    def _add(self, item: OutputItem) -> Iterator[ResponseEvent]:
        self.whole.output = [*self.whole.output, item]
        yield self._item_event("added", item)

    def _close(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        """End the item that is being written, if there is one."""
        match self._open:
            case OutputMessage(content=[part]) as item:
                scores = _scores(part.logprobs)
                yield self._event(TextDone, "output_text.done", **self._part, text=part.text, logprobs=scores)
                yield self._event(PartEvent, "content_part.done", **self._part, part=part)
            case OutputReasoning(content=[part]) as item:
                yield self._event(ThoughtDone, "reasoning_text.done", **self._part, text=part.text)
                yield self._event(PartEvent, "content_part.done", **self._part, part=part)
            case OutputCall() as item:
                done = "function_call_arguments.done"
                yield self._event(ArgumentsDone, done, **self._item, arguments=item.arguments)
            case _:
                return
        item.status = status
        yield self._item_event("done", item)

    @property
    def _item(self) -> dict[str, Any]:
        """Where the item that is being written stands."""
        return {"output_index": len(self.whole.output) - 1, "item_id": self.whole.output[-1].id}

    @property
    def _part(self) -> dict[str, Any]:
        """Where the text that is being written stands."""
        return {**self._item, "content_index": 0}

    def _item_event(self, what: str, item: OutputItem) -> ItemEvent:
        index = len(self.whole.output) - 1
        return self._event(ItemEvent, f"output_item.{what}", output_index=index, item=item.model_copy())

    def _status(self, what: str) -> StatusEvent:
        return self._event(StatusEvent, what, response=self.whole.model_copy())

    def _event(self, kind: type[Event], name: str, **fields: Any) -> Event:
        """The next event."""
        self._events += 1
        return kind(type=f"response.{name}", sequence_number=self._events - 1, **fields)


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _scores(scores: Sequence[TokenLogprob]) -> list[Score]:
    """Log-probabilities as events have them, without bytes."""
    return [
        Score(
            token=each.token,
            logprob=each.logprob,
            top_logprobs=[TopScore(token=top.token, logprob=top.logprob) for top in each.top_logprobs],
        )
        for each in scores
    ]


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=usage.prompt_tokens_details.cached_tokens, cache_write_tokens=0
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.completion_tokens_details.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )
