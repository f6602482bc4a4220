"""The replies of /v1/responses: the whole response, its items, and the events of a stream."""

from typing import Any, Literal

from drafttree.interfaces.server.protocol.replies import EventModel, ReplyModel, TokenLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(ReplyModel):
    """What is said."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprob]


class OutputMessage(ReplyModel):
    """A message of the response."""

    type: Literal["message"]
    id: str
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class OutputCall(ReplyModel):
    """A call that the model asks for; its arguments are JSON where it is completed."""

    type: Literal["function_call"]
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class ReasoningText(ReplyModel):
    """What is thought."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(ReplyModel):
    """What the model thinks before it goes on; nothing is summed up."""

    type: Literal["reasoning"]
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


OutputItem = OutputMessage | OutputCall | OutputReasoning


class InputTokensDetails(ReplyModel):
    """How many of the prompt's tokens were read before, for an earlier text that begins alike."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(ReplyModel):
    """The kinds of the tokens of the response."""

    reasoning_tokens: int


class ResponseUsage(ReplyModel):
    """Tokens of the prompt and of the response, EOS tokens included."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(ReplyModel):
    """Why a response ends before its end."""

    reason: Literal["max_output_tokens"]


class ResponseFailure(ReplyModel):
    """Why a response failed."""

    code: Literal["server_error", "invalid_prompt", "rate_limit_exceeded"]
    message: str


class ModelResponse(ReplyModel):
    """A response; it repeats what was asked for."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None = None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    max_output_tokens: int | None
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    text: dict[str, Any]
    truncation: Literal["disabled"]
    background: Literal[False]
    previous_response_id: None
    lossless: bool
    lossy: str | None = None
    quantization: str | None = None


class ResponseEvent(EventModel):
    """An event of a stream."""

    sequence_number: int


class StatusEvent(ResponseEvent):
    """The response as it is."""

    response: ModelResponse


class ItemEvent(ResponseEvent):
    """An item that begins or has ended."""

    output_index: int
    item: OutputItem


class WithinItemEvent(ResponseEvent):
    """Something about an item."""

    output_index: int
    item_id: str


class WithinPartEvent(WithinItemEvent):
    """Something about a part of a message."""

    content_index: int


class PartEvent(WithinPartEvent):
    """A part of a message that begins or has ended."""

    part: OutputText | ReasoningText


class TopScore(ReplyModel):
    """A token that might have been chosen."""

    token: str
    logprob: float


class Score(TopScore):
    """A token of the text, and the likeliest ones at its place."""

    top_logprobs: list[TopScore]


class TextDelta(WithinPartEvent):
    """More text."""

    delta: str
    logprobs: list[Score]


class TextDone(WithinPartEvent):
    """All text of a part."""

    text: str
    logprobs: list[Score]


class ThoughtDelta(WithinPartEvent):
    """More of what is thought."""

    delta: str


class ThoughtDone(WithinPartEvent):
    """All that is thought."""

    text: str


class ArgumentsDelta(WithinItemEvent):
    """More of the arguments of a call."""

    delta: str


class ArgumentsDone(WithinItemEvent):
    """All arguments of a call."""

    arguments: str
