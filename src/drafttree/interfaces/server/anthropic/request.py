"""The requests to /v1/messages and /v1/messages/count_tokens, and the chats that they ask for."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from drafttree.engine.chat import as_parts
from drafttree.interfaces.server.dialect.model_dialect import SWITCHES
from drafttree.interfaces.server.fields import (
    THOUGHT,
    JsonObject,
    RequestModel,
    Schema,
    by_type,
    fields_of,
    fill_content,
    mistake,
    not_served,
    or_text,
)
from drafttree.interfaces.server.request import (
    TOOLS,
    ChatRequest,
    LeftOut,
    Parameters,
    ToolList,
    ToolName,
    as_object,
)
from drafttree.interfaces.server.sampling import SamplingFields, StopStrings, TokenCount


class TextBlock(fields_of("messages.text")):
    """Text."""

    type: Literal["text"]
    text: str


TextBlocks = Annotated[list[Annotated[TextBlock, by_type("a block", TextBlock)]], or_text(list[TextBlock])]


class ToolUseBlock(fields_of("messages.tool_use")):
    """A call that the model has asked for."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[JsonObject, BeforeValidator(as_object)] = Field(default_factory=dict)


class ToolResultBlock(fields_of("messages.tool_result")):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextBlocks = Field(default_factory=list)


class ThinkingBlock(RequestModel):
    """What a model has thought before it answered."""

    type: Literal["thinking"]
    thinking: Annotated[str, THOUGHT]
    signature: str | None = None


class RedactedThinkingBlock(fields_of("messages.redacted_thinking")):
    """The same, unreadable, so that no later answer is told."""

    type: Literal["redacted_thinking"]


KINDS = {
    "user": ["text", "tool_result"],
    "assistant": ["text", "tool_use", "thinking", "redacted_thinking"],
    "system": ["text"],
}
Block = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock,
    by_type("a block", TextBlock, ToolUseBlock, ToolResultBlock, ThinkingBlock, RedactedThinkingBlock),
]


class Turn(RequestModel):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], or_text(list[Block])]

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, turn: Any) -> Any:
        """Name a block that is not served, or not here."""
        if isinstance(turn, dict) and isinstance(turn.get("content"), list) and turn.get("role") in KINDS:
            served = KINDS[turn["role"]]
            for index, block in enumerate(turn["content"]):
                kind = block.get("type") if isinstance(block, dict) else None
                if isinstance(kind, str) and kind not in served:
                    raise not_served(f"a block of the {turn['role']}", kind, served, "content", index)
        return fill_content(turn)

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if not self.content and self.role != "assistant":
            raise mistake(
                "no_content", f"a turn of the {self.role} is empty; give it content, or leave it out", "content"
            )
        return self

    def messages(self) -> Iterator[dict[str, Any]]:
        """The messages of a chat that it stands for: results of tools are messages of their own."""
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        thoughts: list[str] = []
        for block in self.content:
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case ToolUseBlock():
                    function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
                    calls.append({"id": block.id, "type": "function", "function": function})
                case ToolResultBlock():
                    if texts:
                        yield {"role": self.role, "content": as_parts(texts)}
                        texts = []
                    content = as_parts([part.text for part in block.content])
                    yield {"role": "tool", "content": content, "tool_call_id": block.tool_use_id}
        if texts or self.role == "assistant":
            more = {"tool_calls": calls or None, "reasoning_content": "\n".join(thoughts) or None}
            yield {"role": self.role, "content": as_parts(texts), **more}


def _check_type(schema: Schema, info: ValidationInfo) -> Schema:
    if schema.get("type") != "object":
        what = f"tool {info.data.get('name')!r}: the type is {schema.get('type')!r}"
        raise mistake("no_object", f"{what}; the input of a tool is an object")
    return schema


class CustomTool(fields_of("messages.tools")):
    """A tool of the client's own, which is the only kind that is served."""

    type: Literal["custom", None] = None
    name: ToolName
    description: str | None = None
    strict: bool | None = None
    input_schema: Annotated[Parameters, AfterValidator(_check_type)]


def _refuse_function(tool: Any) -> Any:
    """A tool that another API would run is a mistake, not one that this server lacks."""
    if isinstance(tool, dict) and tool.get("type") == "function":
        raise not_served("a tool", "function", ["custom, with an input_schema"])
    return tool


AnyTool = Annotated[
    CustomTool | LeftOut,
    by_type("a tool", CustomTool, default="custom", other=LeftOut),
    BeforeValidator(_refuse_function),
]


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


class JsonOutput(RequestModel):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    body: Annotated[Schema, Field(alias="schema")]


class OutputConfig(fields_of("messages.output_config")):
    """The form of what is said."""

    format: Annotated[JsonOutput, by_type("a form", JsonOutput)] | None = None


class Thinking(fields_of("messages.thinking")):
    """Whether the model is to think; where that is adaptive, as it does by itself."""

    type: Literal["enabled", "disabled", "adaptive"]


class CountTokensRequest(fields_of("messages.count_tokens")):
    """A conversation whose tokens are to be counted."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    messages: Annotated[list[Turn], Field(min_length=1)] = Field(
        description="roles user, assistant and system; blocks of text, reasoning, tool calls and tool results"
    )
    system: TextBlocks | None = Field(None, description="system message before the messages")
    tools: ToolList[AnyTool] | None = Field(None, description=TOOLS)
    tool_choice: Annotated[ToolChoice, by_type("a tool_choice", ToolChoice)] | None = Field(
        None, description="auto (the default), any, one tool by name, or none; disable_parallel_tool_use for one call"
    )
    output_config: OutputConfig | None = Field(None, description="format: json_schema; effort has no effect")
    thinking: Annotated[Thinking, by_type("thinking", Thinking)] | None = Field(
        None, description="adaptive or disabled; enabled only if the model's chat template supports it"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="vLLM: variables of the model's chat template, such as enable_thinking"
    )

    @model_validator(mode="after")
    def _check_prefill(self) -> Self:
        if not self._goes_on:
            return self
        content, form = self.messages[-1].content, self.output_config and self.output_config.format
        said = "".join(block.text for block in content if isinstance(block, TextBlock))
        wrong = {
            "calls tools, so that their results come next": any(isinstance(block, ToolUseBlock) for block in content),
            "has no text to continue": not said,
            "ends with whitespace, which no token continues": said != said.rstrip(),
            "cannot be continued while thinking is enabled": self.thinking and self.thinking.type == "enabled",
            "cannot be continued in the form of output_config.format": form,
        }
        if reason := next((reason for reason, found in wrong.items() if found), None):
            what = f"the last message is the assistant's and {reason}; change or remove it"
            raise mistake("wrong_prefill", what, "messages", len(self.messages) - 1)
        return self

    @property
    def _goes_on(self) -> bool:
        """Whether the answer continues the last message."""
        return self.messages[-1].role == "assistant"

    def as_chat(self, **more: Any) -> ChatRequest:
        """The chat whose prompt it is, with more fields of a chat.

        Raises:
            ServerError: as for `ChatRequest.of`.
        """
        told = as_parts([block.text for block in self.system or ()])
        system = [{"role": "system", "content": told}] if told else []
        tools: list[Any] = []
        for tool in self.tools or ():
            if isinstance(tool, CustomTool):
                own = {"name": tool.name, "description": tool.description, "strict": tool.strict}
                tools.append({"type": "function", "function": own | {"parameters": tool.input_schema}})
            else:
                tools.append(tool)
        choice, form = self.tool_choice, self.output_config and self.output_config.format
        called = choice and ("required" if choice.type == "any" else choice.type)
        if choice and choice.name is not None:
            called = {"type": "function", "function": {"name": choice.name}}
        schema = form and {"type": "json_schema", "json_schema": {"name": "message", "schema": form.body}}
        return ChatRequest.of(
            self,
            "messages",
            [f"tools.{index}" for index in range(len(tools))],
            messages=[*system, *(message for turn in self.messages for message in turn.messages())],
            tools=tools or None,
            tool_choice=called,
            parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
            response_format=schema,
            chat_template_kwargs=self._template_variables(),
            continue_final_message=self._goes_on,
            **more,
        )

    def _template_variables(self) -> dict[str, Any]:
        """The variables of the chat template; those that turn thinking on and off go by other names in each family."""
        wanted = None if self.thinking is None or self.thinking.type == "adaptive" else self.thinking.type == "enabled"
        switched = {} if wanted is None else dict.fromkeys(SWITCHES, wanted)
        return switched | (self.chat_template_kwargs or {})


class MessagesRequest(SamplingFields, CountTokensRequest, fields_of("messages")):
    """A conversation whose next message is wanted."""

    max_tokens: TokenCount = Field(
        description="maximum number of tokens; required. What the context has no room for is left out"
    )
    stop_sequences: StopStrings | None = Field(None, description="strings that end the text, as `stop`")

    @property
    def stop_strings(self) -> list[str]:
        """The strings before which the text ends."""
        return [*(self.stop_sequences or ()), *(self.stop or ())]

    def as_chat(self, **more: Any) -> ChatRequest:
        """The chat that is answered, with more fields of a chat."""
        return super().as_chat(max_completion_tokens=self.max_tokens, stop=self.stop_strings or None, **more)
