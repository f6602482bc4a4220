"""The request to /v1/responses, and the chat that it asks for."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from drafttree.interfaces.server.errors import LONGEST_NAME
from drafttree.interfaces.server.fields import (
    THOUGHT,
    ConversationTurn,
    JsonSchema,
    ListOf,
    PlainFormat,
    RequestModel,
    by_type,
    fields_of,
    mistake,
    or_text,
)
from drafttree.interfaces.server.request import (
    ANSWER_LIMIT,
    CONTENT,
    MAX_NAME,
    MAX_TOOLS,
    TOOLS,
    AllowedTools,
    Arguments,
    AtLeastOne,
    ChatRequest,
    CustomInput,
    FunctionDefinition,
    FunctionName,
    ImageAddress,
    ImagePart,
    LeftOut,
    Mode,
    OtherForm,
    Refusal,
    ToolList,
    ToolName,
    Unserved,
    refuse_unserved,
)
from drafttree.interfaces.server.sampling import MAX_LOGPROBS, SamplingFields, TokenCount
from drafttree.interfaces.server.unsupported_fields import METADATA

LOGPROBS = "message.output_text.logprobs"


class TextPart(fields_of("responses.input.message.content")):
    """A text in a message, or in a function's output."""

    type: Literal["input_text", "output_text"]
    text: str
    logprobs: object = None


class InputImage(ImagePart, fields_of("responses.input.message.content.input_image")):
    """An image in a message, or in a function's output."""

    type: Literal["input_image"]
    image_url: ImageAddress

    @property
    def source(self) -> dict[str, str]:
        return {"type": "image", "url": self.image_url}


Parts = Annotated[
    ListOf[Annotated[TextPart | InputImage | Refusal | Unserved, by_type("a content part")]],
    or_text(lambda text: [{"type": "input_text", "text": text}]),
]


class StoredFields(RequestModel):
    """Fields of items in earlier responses that have no effect, because the server stores nothing."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class InputMessage(ConversationTurn, StoredFields, fields_of("responses.input.message")):
    """A message of the client or of an earlier response."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts


class FunctionCallItem(StoredFields, fields_of("responses.input.function_call")):
    """A call that the model has asked for."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Arguments = "{}"


class FunctionOutputItem(StoredFields, fields_of("responses.input.function_call_output")):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts


class CustomCallItem(OtherForm, StoredFields):
    """A call of a custom tool. The model sees the call of a function."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str

    @property
    def arguments(self) -> str:
        """The arguments of the function's call."""
        return CustomInput(name=self.name, input=self.input).as_function.arguments


class CustomOutputItem(OtherForm, StoredFields):
    """What a custom tool returned."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom_tool_call_output"]
    call_id: str
    output: Parts


class UnservedItem(Unserved):
    """An item of an unsupported type, such as OpenAI's web search."""

    @model_validator(mode="after")
    def _check_reference(self) -> Self:
        if self.type == "item_reference":
            raise mistake(
                "not_served",
                f"an item of type {self.type!r} is not served, since nothing is stored; send the item itself",
            )
        return self

    @property
    def is_output(self) -> bool:
        """Whether the item is the output of a tool."""
        return self.type.endswith("_output")


class ReasoningText(RequestModel):
    """A part of what a model has thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(StoredFields, fields_of("responses.input.reasoning")):
    """Thinking of the model in an earlier response."""

    type: Literal["reasoning"]
    content: Annotated[ListOf[ReasoningText] | None, THOUGHT] = None


Item = Annotated[
    InputMessage
    | FunctionCallItem
    | FunctionOutputItem
    | CustomCallItem
    | CustomOutputItem
    | ReasoningItem
    | UnservedItem,
    by_type("an item"),
]
SERVED_ITEMS = "message, function_call, function_call_output or reasoning"


def _messages(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Convert items to messages of a chat. Calls join the message before them, thinking joins the message after it."""
    messages: list[dict[str, Any]] = []
    thought = {}
    last_role = None
    for item in items:
        match item:
            case ReasoningItem(content=content):
                thought = {"reasoning_content": "".join(entry.text for entry in content)} if content else thought
                continue
            case UnservedItem():
                if not messages or messages[-1]["role"] is not None:
                    messages.append({"role": None, "content": []})
                messages[-1]["content"].append(item)
                continue
            case InputMessage(role=role):
                messages.append({"role": role, "content": item.content})
                messages[-1] |= thought if role == "assistant" else {}
            case FunctionCallItem() | CustomCallItem():
                if thought or last_role != "assistant":
                    messages.append({"role": "assistant", **thought})
                function = {"name": _qualified_name(item.namespace, item.name), "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                caller = next(message for message in reversed(messages) if message["role"])
                caller.setdefault("tool_calls", []).append(call)
            case FunctionOutputItem() | CustomOutputItem():
                messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
        thought = {}
        last_role = next(message["role"] for message in reversed(messages) if message["role"])
    return _merge_roleless(messages)


def _merge_roleless(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge each message without a role into a neighbour, preferably one of the assistant.

    Chat templates refuse two messages in a row of the same role, and a last message of the assistant.
    """
    role_messages: list[dict[str, Any]] = []
    content: list[Any] = []
    for message, next_message in zip(messages, [*messages[1:], None], strict=True):
        if message["role"] is not None:
            role_messages.append({**message, "content": [*content, *(message.get("content") or ())]})
            content = []
        elif next_message and next_message["role"] == "assistant":
            content = message["content"]
        elif role_messages and (role_messages[-1]["role"] == "assistant") == (next_message is not None):
            role_messages[-1]["content"] += message["content"]
        elif next_message and (not role_messages or role_messages[-1]["role"] in ("system", "developer")):
            content = message["content"]
        else:
            role_messages.append({"role": "assistant" if next_message else "user", "content": message["content"]})
    return role_messages


class FunctionTool(FunctionDefinition, fields_of("responses.tools")):
    """A function that the model may ask to be called."""

    type: Literal["function"]


class Namespace(fields_of("responses.tools.namespace")):
    """Functions whose names begin with their namespace, in the prompt and in the model's calls."""

    type: Literal["namespace"]
    name: ToolName
    tools: ToolList[Annotated[FunctionTool | LeftOut, by_type("a tool")]]


def _qualified_name(namespace: str | None, name: str) -> str:
    """The name of a function in the prompt, which begins with its namespace."""
    return f"{namespace}.{name}" if namespace else name


class NamedFunction(FunctionName):
    """A function by its name."""

    type: Literal["function"]


class AllowedFunctions(AllowedTools):
    """The functions that may be called in this turn. The model sees all functions."""

    type: Literal["allowed_tools"]
    tools: AtLeastOne[Annotated[NamedFunction, by_type("a tool to be called")]]  # pyright: ignore[reportIncompatibleVariableOverride]


class SchemaFormat(JsonSchema):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]


class TextConfig(fields_of("responses.text")):
    """The form of the answer's text."""

    format: Annotated[PlainFormat | SchemaFormat, by_type("a form")] | None = None


class Reasoning(fields_of("responses.reasoning")):
    """How much the model should think."""

    effort: str | None = None


class ResponseStreamOptions(fields_of("responses.stream_options")):
    """Options of the stream."""


class ResponseRequest(SamplingFields, fields_of("responses")):
    """A conversation whose next response is wanted."""

    input: Annotated[ListOf[Item], Field(min_length=1), or_text(lambda text: [{"role": "user", "content": text}])] = (
        Field(description=f"a text, or a list of messages, reasoning, function calls and their outputs; {CONTENT}")
    )
    instructions: str | None = Field(None, description="system message before the input")
    max_output_tokens: TokenCount | None = Field(None, description=ANSWER_LIMIT)
    text: TextConfig | None = Field(
        None, description="format: text, json_object or json_schema; verbosity has no effect"
    )
    tools: ToolList[Annotated[FunctionTool | Namespace | LeftOut, by_type("a tool")]] | None = Field(
        None, description=TOOLS
    )
    tool_choice: Annotated[Mode | NamedFunction | AllowedFunctions, by_type("a tool_choice")] | None = Field(
        None, description="none, auto (the default), required, one function by name, or a subset of the tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false allows at most one call in a response")
    include: ListOf[str] | None = Field(
        None, description=f"`{LOGPROBS}` returns the target model's own; other values have no effect"
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description=f"number of most likely tokens to list for each token; needs `{LOGPROBS}` in `include`"
    )
    reasoning: Reasoning | None = Field(
        None, description="effort works as `reasoning_effort` of a chat; other keys have no effect"
    )
    metadata: METADATA | None = Field(None, description="repeated in the response, but not stored")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="vLLM: variables of the model's chat template, such as enable_thinking"
    )
    stream_options: ResponseStreamOptions | None = Field(
        None, description="only include_obfuscation: false, since events are not padded"
    )

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.top_logprobs and not self.wanted_logprobs:
            raise mistake("no_logprobs", f"this needs {LOGPROBS!r} in include", "top_logprobs")
        tools = self._all_tools
        if len(tools) > MAX_TOOLS:
            message = f"with those in namespaces there are {len(tools)} tools; give at most {MAX_TOOLS}"
            raise mistake("too_many_tools", message, "tools")
        for path, namespace, tool in tools:
            if len(name := _qualified_name(namespace, tool.name or "")) > MAX_NAME and isinstance(tool, FunctionTool):
                message = f"with that of its namespace the name has {len(name)} characters; give at most {MAX_NAME}"
                raise mistake("long_name", message, f"{path}.name")
        if not self.instructions and all(isinstance(item, ReasoningItem) for item in self.input):
            raise mistake("no_message", "reasoning alone cannot be answered; send a message with it", "input", 0)
        return self

    @model_validator(mode="after")
    def _check_last_item(self) -> Self:
        """Refuse unsupported parts in the last item, unless it is the output of a tool or follows one."""
        last_item = self.input[-1]
        previous_item = self.input[-2] if len(self.input) > 1 else None
        item_index = len(self.input) - 1
        if isinstance(last_item, UnservedItem) and not last_item.is_output:
            message = f"an item of type {last_item.type[:LONGEST_NAME]!r} is not served; give {SERVED_ITEMS}"
            raise mistake("not_served", message, "input", item_index)
        follows_results = isinstance(previous_item, FunctionOutputItem | CustomOutputItem)
        follows_results = follows_results or (isinstance(previous_item, UnservedItem) and previous_item.is_output)
        if isinstance(last_item, InputMessage) and last_item.role == "user" and not follows_results:
            refuse_unserved(last_item.content, "a content part", "input_text", "input", item_index, "content")
        return self

    @property
    def wanted_logprobs(self) -> bool:
        """Whether the client asks for log-probabilities."""
        return LOGPROBS in (self.include or ())

    @property
    def _all_tools(self) -> list[tuple[str, str | None, FunctionTool | LeftOut]]:
        """For each tool, its place in the request, its namespace (None for none) and the tool."""
        placed_tools: list[tuple[str, str | None, FunctionTool | LeftOut]] = []
        for index, tool in enumerate(self.tools or ()):
            if isinstance(tool, Namespace):
                placed_tools += [
                    (f"tools.{index}.tools.{inner_index}", tool.name, inner_tool)
                    for inner_index, inner_tool in enumerate(tool.tools)
                ]
            else:
                placed_tools.append((f"tools.{index}", None, tool))
        return placed_tools

    @property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """By the name in the prompt, the fields `name` and `namespace` of a call, for functions in namespaces."""
        qualified_names = [(space, tool.name) for _, space, tool in self._all_tools if space and tool.name]
        return {_qualified_name(space, name): {"name": name, "namespace": space} for space, name in qualified_names}

    def as_chat(self) -> ChatRequest:
        """The request as a chat.

        Raises:
            ServerError: as for `ChatRequest.of`.
        """
        instructions = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        tools = [
            (
                path,
                tool
                if isinstance(tool, LeftOut)
                else tool.model_copy(update={"name": _qualified_name(space, tool.name)}),
            )
            for path, space, tool in self._all_tools
        ]
        return ChatRequest.of(
            self,
            "responses",
            tools,
            messages=[*instructions, *_messages(self.input)],
            max_completion_tokens=self.max_output_tokens,
            tool_choice=self.tool_choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=self.text and self.text.format,
            logprobs=self.wanted_logprobs,
            top_logprobs=self.top_logprobs,
            reasoning_effort=self.reasoning and self.reasoning.effort,
            chat_template_kwargs=self.chat_template_kwargs,
        )
