"""The replies of /v1/messages: the whole message, its blocks, and the events of a stream."""

from typing import Any, Literal

from drafttree.interfaces.server.errors import AnthropicErrorBody
from drafttree.interfaces.server.protocol.replies import EventModel, ReplyModel

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlockReply(ReplyModel):
    """What is said."""

    type: Literal["text"]
    text: str


class ThinkingReply(ReplyModel):
    """What is thought; it needs no signature to be sent back."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseReply(ReplyModel):
    """A call that the model asks for; of one that was cut short, what can be read of its input."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


BlockReply = TextBlockReply | ThinkingReply | ToolUseReply


class MessageUsage(ReplyModel):
    """Tokens: of the prompt those that were read, and those that had been read before; EOS tokens included."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessageReply(ReplyModel):
    """A message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[BlockReply]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    lossless: bool
    lossy: str | None = None
    quantization: str | None = None


class TokenCount(ReplyModel):
    """The number of tokens of a prompt."""

    input_tokens: int


class MessageStart(EventModel):
    """The message before its first block."""

    message: MessageReply


class BlockEvent(EventModel):
    """Something about a block."""

    index: int


class BlockStart(BlockEvent):
    """A block that begins."""

    content_block: BlockReply


class MoreText(ReplyModel):
    """More text."""

    type: Literal["text_delta"]
    text: str


class MoreThinking(ReplyModel):
    """More of what is thought."""

    type: Literal["thinking_delta"]
    thinking: str


class MoreInput(ReplyModel):
    """More of the input of a call, which is JSON when all of it is put together."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(BlockEvent):
    """What is added to a block."""

    delta: MoreText | MoreThinking | MoreInput


class StopDelta(ReplyModel):
    """Why a message ends."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(EventModel):
    """How a message ends."""

    delta: StopDelta
    usage: MessageUsage


class ErrorEvent(EventModel):
    """Why a stream goes on no more."""

    error: AnthropicErrorBody
    request_id: str
