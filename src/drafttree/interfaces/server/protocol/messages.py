"""The messages of a conversation."""

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from drafttree.interfaces.server.protocol.request_model import NotServed, RequestModel, mistake

Role = Literal["system", "developer", "user", "assistant", "tool"]


class ContentPart(RequestModel):
    """A part of a message; only text is served."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Annotated[object, NotServed("what conversations share is found by itself")] = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_kinds(cls, part: Any) -> Any:
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind != "text":
            raise mistake("not_served", f"a content part of type {kind!r} is not served; give text")
        return part


class FunctionCall(RequestModel):
    """Which function was called, and with what."""

    name: str
    arguments: str

    @property
    def parsed_arguments(self) -> Any:
        """The arguments as chat templates want them; text that is no JSON as it is."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments


class ToolCall(RequestModel):
    """A call that the assistant asked for."""

    id: str
    type: Literal["function"]
    function: FunctionCall


Content = Annotated[
    list[ContentPart],
    BeforeValidator(
        lambda content: [{"type": "text", "text": content}] if isinstance(content, str) else content,
        json_schema_input_type=str | list[ContentPart],
    ),
]


class Message(RequestModel):
    """A turn of the conversation; fields beyond role, content and name belong to some roles alone."""

    role: Role
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Annotated[object, NotServed("leave it out, or give it as content")] = None
    audio: Annotated[object, NotServed("give text")] = None
    annotations: Annotated[object, NotServed("leave it out")] = None
    function_call: Annotated[object, NotServed("it is deprecated; give tool_calls")] = None

    @model_validator(mode="after")
    def _check_role(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise mistake("wrong_role", f"tool_calls belong to messages of the assistant, not of role {self.role!r}")
        if self.tool_call_id is not None and self.role != "tool":
            raise mistake("wrong_role", f"tool_call_id belongs to messages of role 'tool', not {self.role!r}")
        if self.content is None and not self.tool_calls:
            raise mistake("missing", "content is missing")
        return self

    @property
    def text(self) -> str | None:
        """The content; parts are joined by line breaks."""
        return None if self.content is None else "\n".join(part.text for part in self.content)


Messages = Annotated[list[Message], Field(min_length=1)]
