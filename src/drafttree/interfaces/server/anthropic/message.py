"""A message as its text makes it: for a stream, and as a whole."""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from pydantic_core import from_json

from drafttree.interfaces.server.answer import Answer
from drafttree.interfaces.server.anthropic.replies import (
    BlockDelta,
    BlockEvent,
    BlockReply,
    BlockStart,
    ErrorEvent,
    MessageDelta,
    MessageReply,
    MessageStart,
    MessageUsage,
    MoreInput,
    MoreText,
    MoreThinking,
    StopDelta,
    StopReason,
    TextBlockReply,
    ThinkingReply,
    ToolUseReply,
)
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.protocol.replies import ChatChunkChoice, EventModel, FinishReason, ToolCallDelta, Usage
from drafttree.interfaces.server.text_pieces import Piece


class MessageText:
    """A message while it is written.

    Args:
        answer: the answer of the chat that the message is made of.
        head: the fields that the message begins with and keeps.
        stop_strings: the request's own; the model's end of a turn is none of them.
        usage: tells the tokens so far.
        request_id: the id of the request, for an error.
    """

    def __init__(
        self,
        answer: Answer,
        head: dict[str, Any],
        stop_strings: Collection[str],
        usage: Callable[[], Usage],
        request_id: str,
    ) -> None:
        self._answer, self._stop_strings, self._usage, self._request_id = answer, stop_strings, usage, request_id
        ending = {"stop_reason": None, "stop_sequence": None, "usage": _usage(usage())}
        self.whole = MessageReply.model_validate(
            {**head, "type": "message", "role": "assistant", "content": [], **ending}
        )
        self._input = ""

    def begin(self) -> list[EventModel]:
        """What a stream begins with."""
        return [MessageStart(type="message_start", message=self.whole.model_copy())]

    def add(self, piece: Piece) -> list[EventModel]:
        """What a piece of text adds; the last one ends the message."""
        return [event for chunk in self._answer.add(piece) for event in self._read(chunk, piece.stopped_by)]

    def fail(self, error: ServerError) -> EventModel:
        """The event that ends a stream that goes on no more."""
        return ErrorEvent(**error.anthropic_body(self._request_id))

    def _read(self, chunk: ChatChunkChoice, stopped_by: str | None) -> Iterator[EventModel]:
        """The events of a chunk of the answer."""
        if chunk.delta.reasoning_content:
            yield from self._think(chunk.delta.reasoning_content)
        if chunk.delta.content:
            yield from self._say(chunk.delta.content)
        for call in chunk.delta.tool_calls or ():
            yield from self._call(call)
        if chunk.finish_reason is not None:
            yield from self._end(chunk.finish_reason, stopped_by if stopped_by in self._stop_strings else None)

    def _think(self, text: str) -> Iterator[EventModel]:
        block = self._open
        if not isinstance(block, ThinkingReply):
            yield from self._close()
            block = ThinkingReply(type="thinking", thinking="", signature="")
            yield self._start(block)
        block.thinking += text
        yield self._delta(MoreThinking(type="thinking_delta", thinking=text))

    def _say(self, text: str) -> Iterator[EventModel]:
        block = self._open
        if not isinstance(block, TextBlockReply):
            yield from self._close()
            block = TextBlockReply(type="text", text="")
            yield self._start(block)
        block.text += text
        yield self._delta(MoreText(type="text_delta", text=text))

    def _call(self, call: ToolCallDelta) -> Iterator[EventModel]:
        if call.id is not None:
            yield from self._close()
            yield self._start(ToolUseReply(type="tool_use", id=call.id, name=call.function.name or "", input={}))
        if text := call.function.arguments:
            self._input += text
            yield self._delta(MoreInput(type="input_json_delta", partial_json=text))

    def _end(self, reason: FinishReason, stopped_by: str | None) -> Iterator[EventModel]:
        yield from self._close()
        why: StopReason = "end_turn"
        if stopped_by is not None:
            why = "stop_sequence"
        elif reason != "stop":
            why = "max_tokens" if reason == "length" else "tool_use"
        whole = self.whole
        whole.stop_reason, whole.stop_sequence, whole.usage = why, stopped_by, _usage(self._usage())
        delta = StopDelta(stop_reason=why, stop_sequence=stopped_by)
        yield MessageDelta(type="message_delta", delta=delta, usage=whole.usage)
        yield EventModel(type="message_stop")

    @property
    def _open(self) -> BlockReply | None:
        """The block that is being written."""
        return self.whole.content[-1] if self.whole.content else None

    def _start(self, block: BlockReply) -> BlockStart:
        self.whole.content = [*self.whole.content, block]
        return BlockStart(type="content_block_start", index=self._index, content_block=block.model_copy())

    def _delta(self, added: MoreText | MoreThinking | MoreInput) -> BlockDelta:
        return BlockDelta(type="content_block_delta", index=self._index, delta=added)

    def _close(self) -> Iterator[EventModel]:
        """End the block that is being written, if there is one."""
        block = self._open
        if block is None:
            return
        if isinstance(block, ToolUseReply):
            block.input, self._input = _read_input(self._input), ""
        yield BlockEvent(type="content_block_stop", index=self._index)

    @property
    def _index(self) -> int:
        """Where the block that is being written stands."""
        return len(self.whole.content) - 1


def _read_input(text: str) -> dict[str, Any]:
    """The input of a call; of one that was cut short, what Anthropic's client reads of it."""
    try:
        found = from_json(text, allow_partial=True)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _usage(usage: Usage) -> MessageUsage:
    cached = usage.prompt_tokens_details.cached_tokens
    return MessageUsage(
        input_tokens=usage.prompt_tokens - cached,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=cached,
        output_tokens=usage.completion_tokens,
    )
