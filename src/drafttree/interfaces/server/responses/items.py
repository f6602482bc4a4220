"""The items of a conversation and the tools, as requests for responses give them."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from drafttree.interfaces.server.protocol.messages import (
    Arguments,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    Message,
    ToolCallParam,
)
from drafttree.interfaces.server.protocol.request_fields import (
    NO_EFFECT,
    THOUGHT,
    NotServed,
    RequestModel,
    check_kind,
    fill_content,
)

DIRECT = NotServed("functions are called by the model alone", ({"type": "direct"}, ["direct"]))


class TextPart(RequestModel):
    """A part of a message or of a function's output; only text is served."""

    type: Literal["input_text", "output_text"]
    text: str
    annotations: Annotated[object, NotServed("leave it out")] = None
    logprobs: object = None
    prompt_cache_breakpoint: Annotated[object, NO_EFFECT] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, part: Any) -> Any:
        return check_kind(part, "a content part", ["input_text", "output_text"])


Parts = Annotated[
    list[TextPart],
    BeforeValidator(
        lambda content: [{"type": "input_text", "text": content}] if isinstance(content, str) else content,
        json_schema_input_type=str | list[TextPart],
    ),
]


def _content(parts: Sequence[TextPart]) -> list[ContentPart]:
    """The parts as messages of chats have them."""
    return [ContentPart(type="text", text=part.text) for part in parts]


def _add_answer(messages: list[Message], **added: Any) -> None:
    """Add to the assistant's message if that is the last one of a conversation, else add one."""
    goes_on = messages and messages[-1].role == "assistant"
    last = messages.pop() if goes_on else Message.model_construct(role="assistant")
    messages.append(last.model_copy(update=added))


class StoredFields(RequestModel):
    """What items of earlier responses have besides their content; nothing is stored, so it says nothing."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class InputMessage(StoredFields):
    """A message, of an earlier response or the client's own."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts
    phase: Annotated[str | None, NO_EFFECT] = None

    @model_validator(mode="before")
    @classmethod
    def _fill_content(cls, message: Any) -> Any:
        return fill_content(message)

    def add_to(self, messages: list[Message]) -> None:
        """Add it to a conversation."""
        thought = messages and messages[-1].role == "assistant" and messages[-1].is_thought
        if self.role == "assistant" and thought:
            _add_answer(messages, content=_content(self.content))
        else:
            messages.append(Message(role=self.role, content=_content(self.content)))


class FunctionCallItem(StoredFields):
    """A call that the model has asked for."""

    model_config = ConfigDict(validate_by_name=True)
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: Arguments = "{}"
    caller: Annotated[object, DIRECT] = None
    namespace: Annotated[object, NotServed("functions have no namespaces")] = None
    async_: Annotated[object, NotServed("calls are answered before the model goes on")] = Field(None, alias="async")

    def add_to(self, messages: list[Message]) -> None:
        """Add it to a conversation, to the assistant's message if that is the last one."""
        call = ToolCallParam(
            id=self.call_id, type="function", function=FunctionCall(name=self.name, arguments=self.arguments)
        )
        said = messages[-1] if messages and messages[-1].role == "assistant" else None
        _add_answer(messages, tool_calls=[*((said and said.tool_calls) or ()), call])


class FunctionOutputItem(StoredFields):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts
    name: Annotated[str | None, NO_EFFECT] = None
    caller: Annotated[object, DIRECT] = None
    namespace: Annotated[object, NotServed("functions have no namespaces")] = None

    def add_to(self, messages: list[Message]) -> None:
        """Add it to a conversation."""
        messages.append(Message(role="tool", content=_content(self.output), tool_call_id=self.call_id))


class ReasoningText(RequestModel):
    """A part of what a model has thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(StoredFields):
    """What a model has thought before it went on."""

    type: Literal["reasoning"]
    summary: Annotated[list[Any] | None, NO_EFFECT] = None
    content: Annotated[list[ReasoningText] | None, THOUGHT] = None
    encrypted_content: Annotated[str | None, NO_EFFECT] = None

    def add_to(self, messages: list[Message]) -> None:
        """Add it to a conversation, as a message that has only thought and that the next item completes."""
        if self.content:
            thought = "".join(part.text for part in self.content)
            messages.append(Message.model_construct(role="assistant", reasoning_content=thought))


KINDS = ["message", "function_call", "function_call_output", "reasoning"]


def _kind(item: Any) -> str | None:
    """The type of an item; messages need none."""
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind, custom_error_type="not_served", custom_error_message=f"give items of type {', '.join(KINDS)}"),
    BeforeValidator(lambda item: check_kind(item, "an item", KINDS)),
]
Items = Annotated[
    Annotated[list[Item], Field(min_length=1)],
    BeforeValidator(
        lambda given: [{"role": "user", "content": given}] if isinstance(given, str) else given,
        json_schema_input_type=str | list[Item],
    ),
]


class FunctionTool(FunctionDefinition):
    """A function that the model may ask to be called."""

    model_config = ConfigDict(validate_by_name=True)
    type: Literal["function"]
    allowed_callers: Annotated[object, DIRECT] = None
    defer_loading: Annotated[object, NotServed("the model is told of all tools")] = None
    output_schema: Annotated[object, NotServed("give it in the description")] = None
    async_: Annotated[object, NotServed("calls are answered before the model goes on")] = Field(None, alias="async")

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, tool: Any) -> Any:
        return check_kind(tool, "a tool", ["function"])
