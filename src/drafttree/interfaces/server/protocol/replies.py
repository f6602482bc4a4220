"""The replies of all routes: whole ones and the chunks of a stream."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class ReplyModel(BaseModel):
    """A part of a reply; what is not set is not sent."""

    model_config = ConfigDict(extra="forbid")

    def json_text(self) -> str:
        """What is sent."""
        return self.model_dump_json(exclude_unset=True)


class EventModel(ReplyModel):
    """An event of a stream; its type is the name of the event too."""

    type: str


class PromptTokensDetails(ReplyModel):
    """How many of the prompt's tokens were read before, for an earlier text that begins alike."""

    cached_tokens: int


class CompletionTokensDetails(ReplyModel):
    """How many drafted tokens the target accepted into the texts, and how many not; how many tokens are thinking."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int


class Usage(ReplyModel):
    """Tokens of the prompts and of all texts, EOS tokens included."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TextReply(ReplyModel):
    """What all replies with texts begin with."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    lossless: bool
    lossy: str | None = None
    quantization: str | None = None


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
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Delta(ReplyModel):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
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


class ChatCompletion(TextReply):
    """A whole reply."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage


class ChatCompletionChunk(TextReply):
    """A chunk of a stream; the last one may have no choices."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class CompletionLogprobs(ReplyModel):
    """Per token: its text, log-probability, the likeliest tokens at its place, and where it begins in the text.

    With `echo` the first token has neither a log-probability nor likeliest tokens: nothing stands before it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(ReplyModel):
    """One text, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class Completion(TextReply):
    """A reply, or a chunk of one, which has the same form."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage | None = None


class ModelCard(ReplyModel):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(ReplyModel):
    """All models that are served."""

    object: Literal["list"]
    data: list[ModelCard]
