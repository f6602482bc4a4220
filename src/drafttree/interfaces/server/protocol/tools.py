"""The tools of a request, and which of them may or must be called."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from drafttree.interfaces.server.protocol.request_model import RequestModel, mistake
from drafttree.interfaces.server.protocol.response_format import NAME, Schema

MAX_TOOLS = 128


class FunctionDefinition(RequestModel):
    """A function that the model may ask to be called."""

    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class Tool(RequestModel):
    """A tool; functions are the only kind that is served."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(RequestModel):
    """The name of a function."""

    name: str


class NamedTool(RequestModel):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName


class AllowedTools(RequestModel):
    """Some of the tools."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class AllowedToolsChoice(RequestModel):
    """Which of the tools may be called in this turn; the model is told of all."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def _kind_of_choice(choice: Any) -> str | None:
    """The tag of a choice."""
    if isinstance(choice, str):
        return "mode"
    return choice.get("type") if isinstance(choice, dict) else getattr(choice, "type", None)


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("mode")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedToolsChoice, Tag("allowed_tools")],
    Discriminator(
        _kind_of_choice,
        custom_error_type="not_served",
        custom_error_message="give none, auto, required, a function, or allowed_tools",
    ),
]


class ToolFields(RequestModel):
    """The fields of a request that are about tools."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = Field(
        None, description="functions that the model may ask to be called"
    )
    tool_choice: ToolChoice | None = Field(
        None, description="none, auto (the default), required, a function by name, or some of the tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false for at most one call in a reply")

    @field_validator("tools")
    @classmethod
    def _check_names(cls, tools: list[Tool] | None) -> list[Tool] | None:
        names = [tool.function.name for tool in tools or ()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise mistake("duplicate_tool", f"two tools have the name {twice!r}")
        return tools

    @property
    def tools_by_name(self) -> dict[str, FunctionDefinition]:
        """All tools."""
        return {tool.function.name: tool.function for tool in self.tools or ()}

    @property
    def callable_tools(self) -> dict[str, FunctionDefinition]:
        """The tools that may be called in this reply."""
        if self.tool_choice == "none":
            return {}
        chosen = self._chosen
        return {name: tool for name, tool in self.tools_by_name.items() if chosen is None or name in chosen}

    @property
    def must_call(self) -> bool:
        """Whether the reply must call a tool."""
        match self.tool_choice:
            case "required" | NamedTool():
                return True
            case AllowedToolsChoice(allowed_tools=allowed):
                return allowed.mode == "required"
        return False

    def check_tools(self) -> None:
        """Refuse a choice that the tools do not allow.

        Raises:
            PydanticCustomError: names it.
        """
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise mistake("no_tools", "tool_choice asks for a call, but there are no tools")
        known = self.tools_by_name
        if missing := next((name for name in self._chosen or () if name not in known), None):
            raise mistake("unknown_tool", f"tool_choice names {missing!r}, which is not among the tools")

    @property
    def _chosen(self) -> list[str] | None:
        """The names that the choice restricts calls to, None where it allows all."""
        match self.tool_choice:
            case NamedTool(function=function):
                return [function.name]
            case AllowedToolsChoice(allowed_tools=allowed):
                return [tool.function.name for tool in allowed.tools]
        return None
