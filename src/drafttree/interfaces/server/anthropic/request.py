"""The requests to /v1/messages and /v1/messages/count_tokens, and the chats that they ask for."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from drafttree.interfaces.server.anthropic.blocks import DIRECT, TextBlocks, Turn, text_parts
from drafttree.interfaces.server.dialect.model_dialect import SWITCHES
from drafttree.interfaces.server.errors import NO_THREADS
from drafttree.interfaces.server.protocol.messages import (
    MAX_TOOLS,
    FunctionDefinition,
    FunctionName,
    Message,
    NamedTool,
    Tool,
)
from drafttree.interfaces.server.protocol.request_fields import (
    NAME,
    NO_EFFECT,
    JsonSchema,
    JsonSchemaFormat,
    NotServed,
    RequestModel,
    SamplingFields,
    Schema,
    StopStrings,
    TokenCount,
    check_kind,
    mistake,
)
from drafttree.interfaces.server.protocol.requests import FOUND_BY_ITSELF, NOTHING_STORED, ChatRequest, chat_mistakes


class CustomTool(RequestModel):
    """A tool of the client's own, which is the only kind that is served."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    input_schema: Schema
    strict: bool | None = None
    cache_control: Annotated[object, NO_EFFECT] = None
    eager_input_streaming: Annotated[bool | None, NO_EFFECT] = None
    allowed_callers: Annotated[object, DIRECT] = None
    defer_loading: Annotated[object, NotServed("the model is told of all tools")] = None
    input_examples: Annotated[object, NotServed("give them in the description")] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, tool: Any) -> Any:
        return check_kind(tool, "a tool", ["custom"])

    @field_validator("input_schema")
    @classmethod
    def _check_schema(cls, schema: Schema, info: ValidationInfo) -> Schema:
        if schema.get("type") != "object":
            what = f"tool {info.data.get('name')!r}: the type is {schema.get('type')!r}"
            raise mistake("no_object", f"{what}; the input of a tool is an object")
        return schema

    @property
    def as_chat(self) -> Tool:
        """The same in a chat."""
        function = FunctionDefinition(
            name=self.name, description=self.description, parameters=self.input_schema, strict=self.strict
        )
        return Tool(type="function", function=function)


class ToolChoice(RequestModel):
    """Whether tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise mistake("wrong_choice", "a choice of type 'tool' has the tool's name, and no other has one")
        return self

    @property
    def as_chat(self) -> Literal["auto", "required", "none"] | NamedTool:
        """The same in a chat."""
        if self.name is not None:
            return NamedTool(type="function", function=FunctionName(name=self.name))
        return "none" if self.type == "none" else "required" if self.type == "any" else "auto"


class JsonOutput(RequestModel):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    body: Annotated[Schema, Field(alias="schema")]


class OutputConfig(RequestModel):
    """The form of what is said."""

    effort: Annotated[str | None, NO_EFFECT] = None
    format: JsonOutput | None = None


class Thinking(RequestModel):
    """Whether the model is to think; where that is adaptive, as it does by itself."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int | None, NO_EFFECT] = None
    display: Annotated[str | None, NO_EFFECT] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, thinking: Any) -> Any:
        return check_kind(thinking, "thinking", ["enabled", "disabled", "adaptive"])


class ConversationFields(RequestModel):
    """Fields of both requests."""

    messages: Annotated[list[Turn], Field(min_length=1)] = Field(
        description="roles user, assistant and system; blocks of text, reasoning, tool calls and tool results"
    )
    system: TextBlocks | None = Field(None, description="system message before the messages")
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="tools that the model may call"
    )
    tool_choice: ToolChoice | None = Field(
        None, description="auto (the default), any, one tool by name, or none; disable_parallel_tool_use for one call"
    )
    output_config: OutputConfig | None = Field(None, description="format: json_schema; effort has no effect")
    thinking: Thinking | None = Field(
        None, description="adaptive or disabled; enabled only if the model's chat template supports it"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="vLLM: variables of the model's chat template, such as enable_thinking"
    )
    cache_control: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description=FOUND_BY_ITSELF)
    speed: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect")
    user_profile_id: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect")
    workspace_id: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect")

    def chat_fields(self) -> dict[str, Any]:
        """What a chat has of these fields."""
        system = [Message(role="system", content=text_parts(self.system))] if self.system else []
        choice, form = self.tool_choice, self.output_config and self.output_config.format
        schema = form and JsonSchema.model_validate({"name": "message", "schema": form.body})
        return {
            "messages": [*system, *(message for turn in self.messages for message in turn.messages())],
            "tools": self.tools and [tool.as_chat for tool in self.tools],
            "tool_choice": choice and choice.as_chat,
            "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
            "response_format": schema and JsonSchemaFormat(type="json_schema", json_schema=schema),
            "chat_template_kwargs": self._template_variables(),
        }

    def _template_variables(self) -> dict[str, Any]:
        """The variables of the chat template; those that turn thinking on and off go by other names in each family."""
        wanted = None if self.thinking is None or self.thinking.type == "adaptive" else self.thinking.type == "enabled"
        switched = {} if wanted is None else dict.fromkeys(SWITCHES, wanted)
        return switched | (self.chat_template_kwargs or {})


class CountTokensRequest(ConversationFields):
    """A conversation whose tokens are to be counted."""

    model: str | None = Field(None, description="name of the served model, which is the default")

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        with chat_mistakes():
            self.as_chat()
        return self

    def as_chat(self) -> ChatRequest:
        """The chat whose prompt it is."""
        return ChatRequest(model=self.model, **self.chat_fields())


class MessagesRequest(SamplingFields, ConversationFields):
    """A conversation whose next message is wanted."""

    max_tokens: TokenCount = Field(description="maximum number of tokens; required")
    stop_sequences: StopStrings | None = Field(None, description="strings that end the text, as `stop`")
    metadata: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description=NOTHING_STORED)
    service_tier: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect: there is one tier")
    inference_geo: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect")
    diagnostics: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description="no effect")
    billing_policy: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description="no effect")
    fallbacks: Annotated[object, NO_EFFECT] = Field(None, description="no effect: there is one model")
    fallback_credit_token: Annotated[object, NO_EFFECT] = Field(None, description="no effect: there is one model")
    container: Annotated[object, NotServed("there are no containers")] = None
    thread: Annotated[object, NotServed("nothing is stored; send all messages", code=NO_THREADS)] = None
    context_management: Annotated[object, NotServed("shorten the messages")] = None
    compaction: Annotated[object, NotServed("shorten the messages")] = None
    mcp_servers: Annotated[object, NotServed("give the tools of these servers as your own")] = None

    @model_validator(mode="after")
    def _check_chat(self) -> Self:
        with chat_mistakes():
            self.as_chat()
        return self

    @property
    def stop_strings(self) -> list[str]:
        """The strings before which the text ends."""
        return [*(self.stop_sequences or ()), *(self.stop or ())]

    def as_chat(self) -> ChatRequest:
        """The chat that is answered."""
        fields = {**self.chat_fields(), "stop": self.stop_strings or None}
        return ChatRequest.of(self, max_completion_tokens=self.max_tokens, **fields)
