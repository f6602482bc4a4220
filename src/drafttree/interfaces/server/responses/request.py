"""The request to /v1/responses, and the chat that it asks for."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from drafttree.interfaces.server.fields import (
    THOUGHT,
    JsonObjectFormat,
    JsonSchema,
    RequestModel,
    TextFormat,
    check_kind,
    fields_of,
    fill_content,
    mistake,
)
from drafttree.interfaces.server.request import (
    ANSWER_LIMIT,
    CHOICES,
    MAX_TOOLS,
    TOOLS,
    Arguments,
    ChatRequest,
    FunctionDefinition,
    LeftOut,
    Mode,
    ToolName,
    kind_of_tool,
)
from drafttree.interfaces.server.sampling import MAX_LOGPROBS, SamplingFields, TokenCount

Messages = list[dict[str, Any]]
"""The messages of a chat, as its request gives them."""
LOGPROBS = "message.output_text.logprobs"
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "function": "",
    "served": "",
}
"""What a chat has, by the names of this API."""


class TextPart(fields_of("responses.input.message.content")):
    """A part of a message or of a function's output; only text is served."""

    type: Literal["input_text", "output_text"]
    text: str
    logprobs: object = None

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


def _content(parts: Sequence[TextPart]) -> list[dict[str, str]]:
    """The parts as messages of chats have them."""
    return [{"type": "text", "text": part.text} for part in parts]


class StoredFields(RequestModel):
    """What items of earlier responses have besides their content; nothing is stored, so it says nothing."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class InputMessage(StoredFields, fields_of("responses.input.message")):
    """A message, of an earlier response or the client's own."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts

    @model_validator(mode="before")
    @classmethod
    def _fill_content(cls, message: Any) -> Any:
        return fill_content(message)

    def add_to(self, messages: Messages) -> None:
        """Add it to a conversation; what the assistant has thought belongs to what it says."""
        goes_on = messages and self.role == "assistant" and _is_thought(messages[-1])
        message = messages.pop() if goes_on else {"role": self.role}
        messages.append(message | {"content": _content(self.content)})


class FunctionCallItem(StoredFields, fields_of("responses.input.function_call")):
    """A call that the model has asked for."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: Arguments = "{}"

    def add_to(self, messages: Messages) -> None:
        """Add it to a conversation, to the assistant's message if that is the last one."""
        function = {"name": _within(self.namespace, self.name), "arguments": self.arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        goes_on = messages and messages[-1]["role"] == "assistant"
        message = messages.pop() if goes_on else {"role": "assistant"}
        messages.append(message | {"tool_calls": [*message.get("tool_calls", ()), call]})


class FunctionOutputItem(StoredFields, fields_of("responses.input.function_call_output")):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: Parts

    def add_to(self, messages: Messages) -> None:
        """Add it to a conversation."""
        messages.append({"role": "tool", "content": _content(self.output), "tool_call_id": self.call_id})


class ReasoningText(RequestModel):
    """A part of what a model has thought."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(StoredFields, fields_of("responses.input.reasoning")):
    """What a model has thought before it went on."""

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText] | None, THOUGHT] = None

    def add_to(self, messages: Messages) -> None:
        """Add it to a conversation, as a message that has only thought and that the next item completes."""
        if self.content:
            thought = "".join(part.text for part in self.content)
            messages.append({"role": "assistant", "reasoning_content": thought})


def _is_thought(message: dict[str, Any]) -> bool:
    """Whether a message has nothing but what was thought."""
    return message.keys() == {"role", "reasoning_content"}


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


class FunctionTool(FunctionDefinition, fields_of("responses.tools")):
    """A function that the model may ask to be called."""

    type: Literal["function"]

    def as_chat(self, namespace: str | None) -> dict[str, Any]:
        """The same in a chat."""
        function = self.model_dump(include={*FunctionDefinition.model_fields})
        return {"type": "function", "function": function | {"name": _within(namespace, self.name)}}


class Namespace(fields_of("responses.tools.namespace")):
    """Functions whose names are told, and called, behind that of their namespace."""

    type: Literal["namespace"]
    name: ToolName
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionTool, Tag("served")] | Annotated[LeftOut, Tag("other")], kind_of_tool("function")
            ]
        ],
        Field(max_length=MAX_TOOLS),
    ]


def _within(namespace: str | None, name: str) -> str:
    """The name of a function as the model knows it."""
    return f"{namespace}.{name}" if namespace else name


class NamedFunction(RequestModel):
    """A function by its name."""

    type: Literal["function"]
    name: str

    @property
    def as_chat(self) -> dict[str, Any]:
        """The same in a chat."""
        return {"type": "function", "function": {"name": self.name}}


class AllowedFunctions(RequestModel):
    """Which of the functions may be called in this turn; the model is told of all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]

    @property
    def as_chat(self) -> dict[str, Any]:
        """The same in a chat."""
        allowed = {"mode": self.mode, "tools": [tool.as_chat for tool in self.tools]}
        return {"type": "allowed_tools", "allowed_tools": allowed}


ToolChoice = Annotated[
    Mode | Annotated[NamedFunction, Tag("function")] | Annotated[AllowedFunctions, Tag("allowed_tools")], CHOICES
]


class SchemaFormat(JsonSchema):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]


class TextConfig(fields_of("responses.text")):
    """The form of what is said."""

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None


class Reasoning(fields_of("responses.reasoning")):
    """How the model is to think."""

    effort: str | None = None


class ResponseStreamOptions(fields_of("responses.stream_options")):
    """What a stream has besides its events."""


class ResponseRequest(SamplingFields, fields_of("responses")):
    """A conversation whose next response is wanted."""

    input: Items = Field(
        description="a text, or a list of messages, reasoning, function calls and their outputs; content is text"
    )
    instructions: str | None = Field(None, description="system message before the input")
    max_output_tokens: TokenCount | None = Field(None, description=ANSWER_LIMIT)
    text: TextConfig | None = Field(
        None, description="format: text, json_object or json_schema; verbosity has no effect"
    )
    tools: (
        Annotated[
            list[
                Annotated[
                    Annotated[FunctionTool, Tag("served")]
                    | Annotated[Namespace, Tag("namespace")]
                    | Annotated[LeftOut, Tag("other")],
                    kind_of_tool("function", "namespace"),
                ]
            ],
            Field(max_length=MAX_TOOLS),
        ]
        | None
    ) = Field(None, description=TOOLS)
    tool_choice: ToolChoice | None = Field(
        None, description="none, auto (the default), required, one function by name, or a subset of the tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false allows at most one call in a response")
    include: list[str] | None = Field(
        None, description=f"`{LOGPROBS}` returns the target model's own; other values have no effect"
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description=f"number of most likely tokens to list for each token; needs `{LOGPROBS}` in `include`"
    )
    reasoning: Reasoning | None = Field(
        None, description="effort works as `reasoning_effort` of a chat; other keys have no effect"
    )
    metadata: dict[str, str] | None = Field(None, description="repeated in the response, but not stored")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="vLLM: variables of the model's chat template, such as enable_thinking"
    )
    stream_options: ResponseStreamOptions | None = Field(
        None, description="only include_obfuscation: false, since events are not padded"
    )

    @model_validator(mode="after")
    def _check_logprobs(self) -> Self:
        if self.top_logprobs and not self.wanted_logprobs:
            raise mistake("no_logprobs", f"top_logprobs needs {LOGPROBS!r} in include")
        return self

    @property
    def wanted_logprobs(self) -> bool:
        """Whether the response is to have log-probabilities."""
        return LOGPROBS in (self.include or ())

    @property
    def all_tools(self) -> list[tuple[str | None, FunctionTool | LeftOut]]:
        """The tools, each with its namespace."""
        found: list[tuple[str | None, FunctionTool | LeftOut]] = []
        for tool in self.tools or ():
            found += [(tool.name, each) for each in tool.tools] if isinstance(tool, Namespace) else [(None, tool)]
        return found

    @property
    def namespaces(self) -> dict[str, dict[str, str]]:
        """What a call says of a function in a namespace, by the name that the model knows."""
        named = [(space, tool.name) for space, tool in self.all_tools if space and tool.name]
        return {_within(space, name): {"name": name, "namespace": space} for space, name in named}

    def as_chat(self) -> ChatRequest:
        """The chat that is answered.

        Raises:
            ServerError: as for `ChatRequest.of`.
        """
        messages: Messages = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        for item in self.input:
            item.add_to(messages)
        choice, form = self.tool_choice, self.text and self.text.format
        if isinstance(form, SchemaFormat):
            schema = form.model_dump(by_alias=True, exclude={"type"}, exclude_unset=True)
            form = {"type": "json_schema", "json_schema": schema}
        tools = [
            tool.model_dump() if isinstance(tool, LeftOut) else tool.as_chat(namespace)
            for namespace, tool in self.all_tools
        ]
        return ChatRequest.of(
            self,
            "responses",
            NAMES,
            messages=[message for message in messages if not _is_thought(message)],
            max_completion_tokens=self.max_output_tokens,
            tools=tools or None,
            tool_choice=choice if isinstance(choice, str | None) else choice.as_chat,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=form,
            logprobs=self.wanted_logprobs,
            top_logprobs=self.top_logprobs,
            reasoning_effort=self.reasoning and self.reasoning.effort,
            chat_template_kwargs=self.chat_template_kwargs,
        )
