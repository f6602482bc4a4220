"""The requests to /v1/messages and /v1/messages/count_tokens, and the chats that they ask for."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from drafttree.interfaces.server.dialect.model_dialect import SWITCHES
from drafttree.interfaces.server.fields import (
    THOUGHT,
    ConversationTurn,
    ListOf,
    RequestModel,
    Schema,
    by_type,
    fields_of,
    mistake,
    not_served,
    or_text,
)
from drafttree.interfaces.server.request import (
    CONTENT,
    TOOLS,
    ChatRequest,
    FunctionDefinition,
    FunctionName,
    ImageAddress,
    ImagePart,
    LeftOut,
    Parameters,
    ToolList,
    Unserved,
    as_object_text,
    refuse_unserved,
)
from drafttree.interfaces.server.sampling import SamplingFields, StopStrings, TokenCount
from drafttree.interfaces.server.written_json import write_json


class TextBlock(fields_of("messages.text")):
    """Text."""

    type: Literal["text"]
    text: str


class Base64Source(RequestModel):
    """The file of an image."""

    type: Literal["base64"]
    media_type: str | None = None
    data: str


class UrlSource(RequestModel):
    """The address of an image."""

    type: Literal["url"]
    url: ImageAddress


class ImageBlock(ImagePart, fields_of("messages.image")):
    """An image."""

    type: Literal["image"]
    file: Annotated[Base64Source | UrlSource, Field(alias="source"), by_type("a source")]

    @property
    def source(self) -> dict[str, str]:
        if isinstance(self.file, UrlSource):
            return {"type": "image", "url": self.file.url}
        return {"type": "image", "base64": self.file.data}


TextBlocks = Annotated[ListOf[Annotated[TextBlock, by_type("a block")]], or_text()]
ReturnedBlocks = Annotated[ListOf[Annotated[TextBlock | ImageBlock | Unserved, by_type("a block")]], or_text()]


def _as_text(call_input: Any) -> Any:
    """Write the input of a call as JSON with the client's spelling of numbers; text may come from a call cut short."""
    if not isinstance(call_input, dict | str | None):
        raise mistake("dict_type", "")
    return write_json(call_input) if isinstance(call_input, dict) else as_object_text(call_input)


class ToolUseBlock(fields_of("messages.tool_use")):
    """A call that the model has asked for."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[str, BeforeValidator(_as_text, json_schema_input_type=dict[str, Any])] = "{}"


class ToolResultBlock(fields_of("messages.tool_result")):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: ReturnedBlocks = Field(default_factory=list)


class ThinkingBlock(RequestModel):
    """What a model has thought before it answered."""

    type: Literal["thinking"]
    thinking: Annotated[str, THOUGHT]
    signature: str | None = None


class RedactedThinkingBlock(fields_of("messages.redacted_thinking")):
    """Encrypted thinking, which the model is not shown."""

    type: Literal["redacted_thinking"]


BLOCK_TYPES = {
    "user": ["text", "tool_result"],
    "assistant": ["text", "tool_use", "thinking", "redacted_thinking"],
    "system": ["text"],
}


SERVED_TYPES = {kind for kinds in BLOCK_TYPES.values() for kind in kinds}


def _check_block_type(block: Any, info: ValidationInfo) -> Any:
    """Refuse a block of a type that the turn's role cannot have."""
    role = info.data.get("role")
    block_type = block.get("type") if isinstance(block, dict) else None
    if (
        role in BLOCK_TYPES
        and isinstance(block_type, str)
        and block_type in SERVED_TYPES
        and block_type not in BLOCK_TYPES[role]
    ):
        raise not_served(f"a block of the {role}", block_type, BLOCK_TYPES[role])
    return block


Block = Annotated[
    TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock | Unserved,
    by_type("a block"),
    BeforeValidator(_check_block_type),
]


class Turn(ConversationTurn):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[ListOf[Block], or_text()]

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if not self.content and self.role != "assistant":
            raise mistake(
                "no_content", f"a turn of the {self.role} is empty; give it content, or leave it out", "content"
            )
        return self

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of a chat for this turn: each result of a tool is a message of its own."""
        content_blocks: list[TextBlock | ImageBlock | Unserved] = []
        calls: list[dict[str, Any]] = []
        thoughts: list[str] = []
        for block in self.content:
            match block:
                case TextBlock() | ImageBlock() | Unserved():
                    content_blocks.append(block)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case ToolUseBlock():
                    function = {"name": block.name, "arguments": block.input}
                    calls.append({"id": block.id, "type": "function", "function": function})
                case ToolResultBlock():
                    if content_blocks:
                        yield {"role": self.role, "content": content_blocks}
                        content_blocks = []
                    yield {"role": "tool", "content": block.content, "tool_call_id": block.tool_use_id}
        if content_blocks or self.role == "assistant":
            extra_fields = {"tool_calls": calls or None, "reasoning_content": "\n".join(thoughts) or None}
            yield {"role": self.role, "content": content_blocks, **extra_fields}


def _check_type(schema: Schema, info: ValidationInfo) -> Schema:
    if schema.get("type") != "object":
        problem = f"tool {info.data.get('name')!r}: the type is {schema.get('type')!r}"
        raise mistake("no_object", f"{problem}; the input of a tool is an object")
    return schema


class CustomTool(FunctionDefinition, fields_of("messages.tools")):
    """A tool that the client runs; other tools are not served."""

    type: Literal["custom", None] = None
    parameters: Annotated[Parameters, AfterValidator(_check_type)] = Field(alias="input_schema")  # pyright: ignore[reportIncompatibleVariableOverride]


def _refuse_function(tool: Any) -> Any:
    """Refuse a tool in OpenAI's form. It would otherwise be left out as one that this server cannot run."""
    if isinstance(tool, dict) and tool.get("type") == "function":
        raise not_served("a tool", "function", ["custom, with an input_schema"])
    return tool


AnyTool = Annotated[CustomTool | LeftOut, by_type("a tool"), BeforeValidator(_refuse_function)]


class ToolChoice(RequestModel):
    """Whether tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if (self.type == "tool") != (self.name is not None):
            raise mistake("wrong_choice", "give a name with the type 'tool', and with no other type")
        return self


class JsonOutput(RequestModel):
    """JSON that conforms to a schema."""

    type: Literal["json_schema"]
    body: Annotated[Schema, Field(alias="schema")]


class OutputConfig(fields_of("messages.output_config")):
    """The form of the answer's text."""

    format: Annotated[JsonOutput, by_type("a form")] | None = None


class Thinking(fields_of("messages.thinking")):
    """Whether the model should think; if adaptive, its chat template decides."""

    type: Literal["enabled", "disabled", "adaptive"]


class CountTokensRequest(fields_of("messages.count_tokens")):
    """A conversation whose tokens are to be counted."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    messages: Annotated[ListOf[Turn], Field(min_length=1)] = Field(
        description=f"roles user, assistant and system; text, reasoning, tool calls and tool results; {CONTENT}"
    )
    system: TextBlocks | None = Field(None, description="system message before the messages")
    tools: ToolList[AnyTool] | None = Field(None, description=TOOLS)
    tool_choice: Annotated[ToolChoice, by_type("a tool_choice")] | None = Field(
        None, description="auto (the default), any, one tool by name, or none; disable_parallel_tool_use for one call"
    )
    output_config: OutputConfig | None = Field(None, description="format: json_schema; effort has no effect")
    thinking: Annotated[Thinking, by_type("thinking")] | None = Field(
        None, description="adaptive or disabled; enabled only if the model's chat template supports it"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="vLLM: variables of the model's chat template, such as enable_thinking"
    )

    @model_validator(mode="after")
    def _check_last_turn(self) -> Self:
        """Refuse unsupported blocks in the user's last turn, unless it has or follows results of tools."""
        turn_index = len(self.messages) - 1
        if turn_index > 0 and self._continues_answer:
            turn_index -= 1
        turn = self.messages[turn_index]
        previous_content = self.messages[turn_index - 1].content if turn_index > 0 else []
        follows_results = any(isinstance(block, ToolResultBlock) for block in [*previous_content[-1:], *turn.content])
        if turn.role == "user" and not follows_results:
            refuse_unserved(
                turn.content, "a block of the user", " or ".join(BLOCK_TYPES["user"]), "messages", turn_index, "content"
            )
        return self

    @model_validator(mode="after")
    def _check_prefill(self) -> Self:
        if not self._continues_answer:
            return self
        content = self.messages[-1].content
        form = self.output_config and self.output_config.format
        prefill = "".join(block.text for block in content if isinstance(block, TextBlock))
        mistakes = {
            "calls tools, so that their results come next": any(isinstance(block, ToolUseBlock) for block in content),
            "has no text to continue": not prefill,
            "ends with whitespace, which no token continues": prefill != prefill.rstrip(),
            "cannot be continued while thinking is enabled": self.thinking and self.thinking.type == "enabled",
            "cannot be continued in the form of output_config.format": form,
        }
        if reason := next((reason for reason, flag in mistakes.items() if flag), None):
            message = f"the last message is the assistant's and {reason}; change or remove it"
            raise mistake("wrong_prefill", message, "messages", len(self.messages) - 1)
        return self

    @property
    def _continues_answer(self) -> bool:
        """Whether the last message is the assistant's, which the answer continues."""
        return self.messages[-1].role == "assistant"

    def as_chat(self, **chat_fields: Any) -> ChatRequest:
        """The chat whose prompt is counted, with further fields of a chat.

        Raises:
            ServerError: as for `ChatRequest.of`.
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        thinks = self.thinking and self.thinking.type
        switches = {} if thinks in (None, "adaptive") else dict.fromkeys(SWITCHES, thinks == "enabled")
        choice = self.tool_choice
        tool_choice = choice and ("required" if choice.type == "any" else choice.type)
        if choice and choice.name is not None:
            tool_choice = FunctionName(name=choice.name)
        return ChatRequest.of(
            self,
            "messages",
            [(f"tools.{index}", tool) for index, tool in enumerate(self.tools or ())],
            messages=[*system, *(message for turn in self.messages for message in turn.messages())],
            tool_choice=tool_choice,
            parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
            response_format=self.output_config and self.output_config.format,
            chat_template_kwargs=switches | (self.chat_template_kwargs or {}),
            continue_final_message=self._continues_answer,
            **chat_fields,
        )


class MessagesRequest(SamplingFields, CountTokensRequest, fields_of("messages")):
    """A conversation whose next message is wanted."""

    max_tokens: TokenCount = Field(
        description="maximum number of tokens; required. What the context has no room for is left out"
    )
    stop_sequences: StopStrings | None = Field(None, description="strings that end the text, as `stop`")

    @property
    def stop_strings(self) -> list[str]:
        """The stop strings."""
        return [*(self.stop_sequences or ()), *(self.stop or ())]

    def as_chat(self, **chat_fields: Any) -> ChatRequest:
        """The chat that is answered, with further fields of a chat."""
        return super().as_chat(max_completion_tokens=self.max_tokens, stop=self.stop_strings or None, **chat_fields)
