"""The messages of a conversation, as Anthropic's API gives them, and the messages of a chat that they stand for."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from drafttree.interfaces.server.protocol.messages import (
    ContentPart,
    FunctionCall,
    Message,
    ToolCallParam,
    as_object,
)
from drafttree.interfaces.server.protocol.request_fields import (
    NO_EFFECT,
    THOUGHT,
    JsonObject,
    NotServed,
    RequestModel,
    check_kind,
    fill_content,
)

DIRECT = NotServed("tools are called by the model alone", ({"type": "direct"}, ["direct"]))


class TextBlock(RequestModel):
    """Text."""

    type: Literal["text"]
    text: str
    cache_control: Annotated[object, NO_EFFECT] = None
    citations: Annotated[object, NotServed("leave it out")] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, block: Any) -> Any:
        return check_kind(block, "a block", ["text"])


def _as_blocks(content: Any) -> Any:
    """Content that is text as its only block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TextBlocks = Annotated[list[TextBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[TextBlock])]


def text_parts(blocks: list[TextBlock]) -> list[ContentPart]:
    """Texts as messages of chats have them."""
    return [ContentPart(type="text", text=block.text) for block in blocks]


class ToolUseBlock(RequestModel):
    """A call that the model has asked for."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Annotated[JsonObject, BeforeValidator(as_object)] = Field(default_factory=dict)
    cache_control: Annotated[object, NO_EFFECT] = None
    caller: Annotated[object, DIRECT] = None
    toolset_name: Annotated[object, NotServed("there are no tool sets")] = None


class ToolResultBlock(RequestModel):
    """What a tool returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: TextBlocks = Field(default_factory=list)
    is_error: Annotated[bool | None, NO_EFFECT] = None
    cache_control: Annotated[object, NO_EFFECT] = None
    toolset_name: Annotated[object, NotServed("there are no tool sets")] = None


class ThinkingBlock(RequestModel):
    """What a model has thought before it answered."""

    type: Literal["thinking"]
    thinking: Annotated[str, THOUGHT]
    signature: str | None = None


class RedactedThinkingBlock(RequestModel):
    """The same, unreadable, so that no later answer is told."""

    type: Literal["redacted_thinking"]
    data: Annotated[str, NO_EFFECT]


KINDS = {
    "user": ["text", "tool_result"],
    "assistant": ["text", "tool_use", "thinking", "redacted_thinking"],
    "system": ["text"],
}
Block = Annotated[
    TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock, Field(discriminator="type")
]
Blocks = Annotated[list[Block], BeforeValidator(_as_blocks, json_schema_input_type=str | list[Block])]


class Turn(RequestModel):
    """A turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: Blocks

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, turn: Any) -> Any:
        """Name a block that is not served, or not here."""
        if isinstance(turn, dict) and isinstance(turn.get("content"), list) and turn.get("role") in KINDS:
            for block in turn["content"]:
                check_kind(block, f"a block of the {turn['role']}", KINDS[turn["role"]])
        return fill_content(turn)

    def messages(self) -> Iterator[Message]:
        """The messages of a chat that it stands for: results of tools are messages of their own."""
        texts: list[TextBlock] = []
        calls: list[ToolCallParam] = []
        thoughts: list[str] = []
        for block in self.content:
            match block:
                case TextBlock():
                    texts.append(block)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case ToolUseBlock():
                    calls.append(_call(block))
                case ToolResultBlock():
                    if texts:
                        yield Message(role=self.role, content=text_parts(texts))
                        texts = []
                    yield Message(role="tool", content=text_parts(block.content), tool_call_id=block.tool_use_id)
        if texts or self.role == "assistant":
            thought = "\n".join(thoughts) or None
            yield Message(
                role=self.role, content=text_parts(texts), tool_calls=calls or None, reasoning_content=thought
            )


def _call(block: ToolUseBlock) -> ToolCallParam:
    """A call as chats have it."""
    function = FunctionCall(name=block.name, arguments=json.dumps(block.input, ensure_ascii=False))
    return ToolCallParam(id=block.id, type="function", function=function)
