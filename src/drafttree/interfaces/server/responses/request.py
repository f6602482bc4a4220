"""The request to /v1/responses, and the chat that it asks for."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from drafttree.interfaces.server.protocol.messages import (
    MAX_TOOLS,
    AllowedTools,
    AllowedToolsChoice,
    ContentPart,
    FunctionDefinition,
    FunctionName,
    Message,
    NamedTool,
    Tool,
    kind_of_choice,
)
from drafttree.interfaces.server.protocol.request_fields import (
    MAX_LOGPROBS,
    NO_EFFECT,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NotServed,
    RequestModel,
    SamplingFields,
    TextFormat,
    TokenCount,
    mistake,
)
from drafttree.interfaces.server.protocol.requests import (
    ANSWER_LIMIT,
    FOUND_BY_ITSELF,
    NOTHING_STORED,
    ChatRequest,
    chat_mistakes,
)
from drafttree.interfaces.server.responses.items import FunctionTool, Items

LOGPROBS = "message.output_text.logprobs"


class NamedFunction(RequestModel):
    """A function by its name."""

    type: Literal["function"]
    name: str

    @property
    def as_chat(self) -> NamedTool:
        """The same in a chat."""
        return NamedTool(type="function", function=FunctionName(name=self.name))


class AllowedFunctions(RequestModel):
    """Which of the functions may be called in this turn; the model is told of all."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1)]

    @property
    def as_chat(self) -> AllowedToolsChoice:
        """The same in a chat."""
        allowed = AllowedTools(mode=self.mode, tools=[tool.as_chat for tool in self.tools])
        return AllowedToolsChoice(type="allowed_tools", allowed_tools=allowed)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedFunction, Tag("function")]
    | Annotated[AllowedFunctions, Tag("allowed_tools")],
    Discriminator(
        kind_of_choice,
        custom_error_type="not_served",
        custom_error_message="give none, auto, required, a function, or allowed_tools",
    ),
]


class SchemaFormat(JsonSchema):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]

    @property
    def as_chat(self) -> JsonSchemaFormat:
        """The same in a chat."""
        return JsonSchemaFormat(type="json_schema", json_schema=self)


class TextConfig(RequestModel):
    """The form of what is said."""

    format: Annotated[TextFormat | JsonObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Annotated[Literal["low", "medium", "high"] | None, NO_EFFECT] = None


class Reasoning(RequestModel):
    """How the model is to think."""

    effort: str | None = None
    summary: Annotated[str | None, NO_EFFECT] = None
    generate_summary: Annotated[str | None, NO_EFFECT] = None
    context: Annotated[str | None, NO_EFFECT] = None
    mode: Annotated[str | None, NO_EFFECT] = None


class ResponseStreamOptions(RequestModel):
    """What a stream has besides its events."""

    include_obfuscation: Annotated[object, NotServed("events are not padded; leave it out")] = None


class ResponseRequest(SamplingFields):
    """A conversation whose next response is wanted."""

    input: Items = Field(
        description="a text, or a list of messages, reasoning, function calls and their outputs; content is text"
    )
    instructions: str | None = Field(None, description="system message before the input")
    max_output_tokens: TokenCount | None = Field(None, description=ANSWER_LIMIT)
    text: TextConfig | None = Field(
        None, description="format: text, json_object or json_schema; verbosity has no effect"
    )
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="functions that the model may call"
    )
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
    store: Annotated[bool | None, NO_EFFECT] = Field(None, description=NOTHING_STORED)
    background: Annotated[bool | None, NO_EFFECT] = Field(
        None, description="no effect: the response is returned directly"
    )
    background_options: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(
        None, description="no effect: the response is returned directly"
    )
    max_tool_calls: Annotated[int | None, NO_EFFECT] = Field(
        None, description="no effect: it limits calls of built-in tools, and there are none"
    )
    service_tier: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect: there is one tier")
    safety_identifier: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect")
    access_programs: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description="no effect")
    image: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description="no effect: there are no images")
    prompt_cache_key: Annotated[str | None, NO_EFFECT] = Field(None, description=FOUND_BY_ITSELF)
    prompt_cache_options: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description=FOUND_BY_ITSELF)
    prompt_cache_retention: Annotated[str | None, NO_EFFECT] = Field(None, description=FOUND_BY_ITSELF)
    previous_response_id: Annotated[object, NotServed("nothing is stored; send the conversation as input")] = None
    conversation: Annotated[object, NotServed("nothing is stored; send the conversation as input")] = None
    prompt: Annotated[object, NotServed("no prompts are stored; send the text as input")] = None
    context_management: Annotated[object, NotServed("shorten the input")] = None
    truncation: Annotated[object, NotServed("shorten the input", ("disabled",))] = None
    moderation: Annotated[object, NotServed("there is no moderation")] = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        if self.top_logprobs and not self.wanted_logprobs:
            raise mistake("no_logprobs", f"top_logprobs needs {LOGPROBS!r} in include")
        with chat_mistakes():
            self.as_chat()
        return self

    @property
    def wanted_logprobs(self) -> bool:
        """Whether the response is to have log-probabilities."""
        return LOGPROBS in (self.include or ())

    def as_chat(self) -> ChatRequest:
        """The chat that is answered."""
        messages: list[Message] = []
        if self.instructions is not None:
            messages.append(Message(role="system", content=[ContentPart(type="text", text=self.instructions)]))
        for item in self.input:
            item.add_to(messages)
        choice, form = self.tool_choice, self.text and self.text.format
        return ChatRequest.of(
            self,
            messages=[message for message in messages if not message.is_thought],
            max_completion_tokens=self.max_output_tokens,
            tools=self.tools and [_tool(tool) for tool in self.tools],
            tool_choice=choice.as_chat if isinstance(choice, RequestModel) else choice,
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=form.as_chat if isinstance(form, SchemaFormat) else form,
            logprobs=self.wanted_logprobs,
            top_logprobs=self.top_logprobs,
            reasoning_effort=self.reasoning and self.reasoning.effort,
            chat_template_kwargs=self.chat_template_kwargs,
        )


def _tool(tool: FunctionTool) -> Tool:
    """A function as chats have it."""
    names = FunctionDefinition.model_fields
    return Tool(type="function", function=FunctionDefinition(**{name: getattr(tool, name) for name in names}))
