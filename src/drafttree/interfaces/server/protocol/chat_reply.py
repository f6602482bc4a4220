"""Replies of /v1/chat/completions: whole ones and the chunks of a stream."""

from typing import Literal

from drafttree.interfaces.server.protocol.reply_model import ReplyModel
from drafttree.interfaces.server.protocol.usage import Usage

FinishReason = Literal["stop", "length", "tool_calls"]


class TopLogprob(ReplyModel):
    """A token that might have been chosen."""

    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob):
    """A token of the text, and the likeliest ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(ReplyModel):
    """The tokens that the text is made of."""

    content: list[TokenLogprob]
    refusal: None


class CalledFunction(ReplyModel):
    """The function that is to be called, or a part of its arguments."""

    name: str | None = None
    arguments: str


class ToolCall(ReplyModel):
    """A call that the model asks for."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class ToolCallDelta(ReplyModel):
    """What a chunk adds to a call; the first one has its id and name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


class AnswerMessage(ReplyModel):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] | None = None


class Delta(ReplyModel):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChoice(ReplyModel):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatChunkChoice(ReplyModel):
    """What a chunk adds to one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatCompletion(ReplyModel):
    """A whole reply."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    lossless: bool
    lossy: str | None = None
    quantization: str | None = None
    choices: list[ChatChoice]
    usage: Usage


class ChatCompletionChunk(ReplyModel):
    """A chunk of a stream; the last one may have no choices."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    lossless: bool
    lossy: str | None = None
    quantization: str | None = None
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
