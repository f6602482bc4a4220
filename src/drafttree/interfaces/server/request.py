"""The request of a chat: messages, tools, and options of the answer.

Requests of other APIs are converted to it by `ChatRequest.of`.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from drafttree.constraints.json_schema import CHOICE_KEYWORDS
from drafttree.constraints.schema_comparison import SchemaComparison
from drafttree.core.errors import ConfigError, unknown
from drafttree.interfaces.server.errors import LONGEST_NAME, refusal_of
from drafttree.interfaces.server.fields import (
    NAMES,
    THOUGHT,
    JsonSchemaFormat,
    ListOf,
    PlainFormat,
    RequestModel,
    Schema,
    ServedModel,
    StructuredOutputs,
    by_type,
    fields_of,
    mistake,
    or_text,
)
from drafttree.interfaces.server.sampling import MAX_LOGPROBS, SamplingFields, SeveralTexts, TokenCount

CONTENT = (
    "content is text, and images if the model reads them. In earlier turns and in tool results, a text replaces other "
    "parts"
)
TOOLS = "functions that the model may call; tools of other types are left out, with a warning"
ANSWER_LIMIT = "maximum number of tokens; default: the model's own, or else 2,048, limited by the context"


def shown_name(name: str) -> str:
    """A name from a client in a form that is safe in headers, logs and prompts: short, ASCII, without quotes."""
    return ascii(name[:LONGEST_NAME])[1:-1].replace('"', "'")


class OtherForm(RequestModel):
    """A part of a conversation that the model sees in another form. The reply's `Warning` header names it."""

    type: Any

    @property
    def shown(self) -> str:
        """Its type, safe in headers and prompts."""
        return shown_name(self.type)


class Unserved(OtherForm):
    """A part of an unsupported type. The model sees a text instead, so that the client can continue the conversation.

    In the message to be answered, such a part is refused, see `refuse_unserved`.
    """

    model_config = ConfigDict(extra="ignore")

    type: str

    @property
    def text(self) -> str:
        """The text that the model sees instead."""
        medium = self.shown.removeprefix("input_").removesuffix("_url")
        return f"[{medium} omitted: this server does not read it]"


def shown_otherwise(request_part: object) -> Iterator[str]:
    """Yield the types of the parts of a request that the model sees in another form."""
    if isinstance(request_part, OtherForm):
        yield request_part.shown
    members: Iterable[object] = ()
    if isinstance(request_part, RequestModel):
        members = request_part.__dict__.values()
    elif isinstance(request_part, list):
        members = request_part
    for member in members:
        yield from shown_otherwise(member)


def refuse_unserved(
    content_parts: Sequence[RequestModel] | None, part_name: str, served: str, *location: str | int
) -> None:
    """Refuse unsupported parts in the message that the reply answers.

    Args:
        content_parts: the parts of the message.
        part_name: the name of a part in the error.
        served: the supported parts, for the error.
        *location: the place of the parts in the request.

    Raises:
        PydanticCustomError: a part is not supported.
    """
    for index, content_part in enumerate(content_parts or ()):
        if isinstance(content_part, Unserved):
            message = f"{part_name} of type {content_part.type[:LONGEST_NAME]!r} is not served; give {served}"
            raise mistake("not_served", message, *location, index)


IMAGE_ADDRESS = re.compile(r"data:|https?://", re.IGNORECASE)


def _check_address(address: str) -> str:
    """Refuse what is neither a data URL nor an address, such as a path of the server's machine."""
    if not IMAGE_ADDRESS.match(address):
        raise mistake("no_url", "this is no URL of an image; send a data URL such as data:image/png;base64,...")
    return address


ImageAddress = Annotated[str, AfterValidator(_check_address)]
"""A data URL, or the address of an image."""


class ImagePart(RequestModel):
    """An image in a message, for models that read images."""

    @classmethod
    def is_served(cls, context: object) -> bool:
        return isinstance(context, ServedModel) and context.reads_images

    @property
    def source(self) -> dict[str, str]:
        """The image as a part of a message in the form that `drafttree.images.image_source.open_image` reads."""
        raise NotImplementedError


class ImageUrl(fields_of("chat.messages.content.image_url")):
    """Where an image is."""

    url: ImageAddress


class ImageUrlPart(ImagePart, fields_of("chat.messages.content")):
    """An image of a message."""

    type: Literal["image_url"]
    image_url: ImageUrl

    @property
    def source(self) -> dict[str, str]:
        return {"type": "image", "url": self.image_url.url}


class ContentPart(fields_of("chat.messages.content")):
    """A text in a message."""

    type: Literal["text"]
    text: str


class Refusal(RequestModel):
    """A part of a message in which the assistant refuses to answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """The words of the refusal."""
        return self.refusal


NO_OBJECT = "INVALID_JSON"
"""Key for arguments that are not a JSON object, as Anthropic recommends for calls that were cut off."""


def as_object_text(arguments: Any) -> Any:
    """Convert the arguments of a call to the text of a JSON object, which chat templates need.

    The text of an object stays as it is. Null, "null" and blank text become an empty object, and other text an object
    with the key `NO_OBJECT`. Values of other types are returned unchanged.
    """
    if not isinstance(arguments, str | None):
        return arguments
    try:
        parsed_arguments = json.loads((arguments or "").strip() or "null", parse_int=float)
    except (ValueError, RecursionError):
        parsed_arguments = arguments
    if arguments and isinstance(parsed_arguments, dict):
        return arguments
    return "{}" if parsed_arguments is None else json.dumps({NO_OBJECT: arguments}, ensure_ascii=False)


Arguments = Annotated[str, BeforeValidator(as_object_text, json_schema_input_type=str | None)]


class FunctionCall(RequestModel):
    """Which function was called, and with what."""

    name: str
    arguments: Arguments = "{}"


class ToolCallParam(fields_of("chat.messages.tool_calls")):
    """A call that the assistant asked for."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class CustomInput(RequestModel):
    """Which custom tool was called, and with what."""

    name: str
    input: str

    @property
    def as_function(self) -> FunctionCall:
        """The call of a function that the model sees instead."""
        return FunctionCall(name=self.name, arguments=json.dumps({"input": self.input}, ensure_ascii=False))


class CustomCall(OtherForm):
    """A call of a custom tool. The model sees the call of a function."""

    id: str
    type: Literal["custom"]
    custom: CustomInput

    @property
    def function(self) -> FunctionCall:
        """The call of a function that the model sees instead."""
        return self.custom.as_function


class EarlierAudio(Unserved):
    """An earlier answer as audio."""

    type: str = "audio"


PartOfMessage = Annotated[ContentPart | ImageUrlPart | Refusal | Unserved, by_type("a content part")]


class Message(fields_of("chat.messages")):
    """A turn of the conversation. All roles have role, content and name; the other fields belong to certain roles."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[ListOf[PartOfMessage], or_text()] | None = None
    name: str | None = None
    refusal: str | None = None
    audio: EarlierAudio | None = None
    tool_calls: ListOf[Annotated[ToolCallParam | CustomCall, by_type("a call")]] | None = None
    tool_call_id: str | None = None
    reasoning_content: Annotated[str | None, THOUGHT] = None

    @model_validator(mode="after")
    def _check_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise mistake("wrong_role", f"these belong to the assistant's messages, not {self.role!r}", "tool_calls")
        if self.tool_call_id is not None and self.role != "tool":
            raise mistake("wrong_role", f"this belongs to messages of role 'tool', not {self.role!r}", "tool_call_id")
        if self.content is None and self.role != "assistant":
            raise mistake("missing", f"a message of role {self.role!r} has a content", "content")
        return self

    @property
    def texts(self) -> list[str]:
        """The texts of the parts of the content."""
        text_parts = [content_part for content_part in self.content or () if not isinstance(content_part, ImagePart)]
        content_texts = [content_part.text for content_part in text_parts]
        return [*content_texts, *filter(None, [self.refusal, self.audio and self.audio.text])]

    @property
    def images(self) -> list[ImagePart]:
        """The images among the parts of the content."""
        return [content_part for content_part in self.content or () if isinstance(content_part, ImagePart)]


Messages = Annotated[ListOf[Message], Field(min_length=1)]


class PromptEnd(RequestModel):
    """The fields of a request that say where the prompt of a conversation ends."""

    add_generation_prompt: bool | None = Field(
        None, description="vLLM: false ends the prompt after the last message, without starting an answer"
    )
    continue_final_message: bool | None = Field(
        None, description="vLLM: continue the last message instead of answering it"
    )

    @model_validator(mode="after")
    def _check_end(self) -> Self:
        if self.add_generation_prompt and self.continue_final_message:
            message = "this and add_generation_prompt cannot both be true"
            raise mistake("two_ends", message, "continue_final_message")
        return self


MAX_TOOLS, MAX_NAME = 512, 128
ToolName = Annotated[str, Field(pattern=rf"^[a-zA-Z0-9_./-]{{1,{MAX_NAME}}}$")]


MAX_STEPS = 1000
"""The most steps of the check whether a tool's schema allows objects, because a request may have 512 tools."""


def _check_object(schema: Schema, info: ValidationInfo) -> Schema:
    """Refuse a schema of arguments that allows no object, and a strict schema that also allows other values."""
    if not schema.keys() & {"type", *CHOICE_KEYWORDS}:
        return schema
    subject = f"tool {info.data.get('name')!r}"
    try:
        types = SchemaComparison(schema, MAX_STEPS).possible_types(schema)
    except ConfigError as error:
        if not info.data.get("strict"):
            return schema  # it is refused if it must be enforced
        raise mistake("invalid_schema", f"{subject}: {error}") from None
    if "object" not in types or (info.data.get("strict") and types != {"object"}):
        type_names = ", ".join(sorted(types)) or "nothing"
        raise mistake(
            "no_object", f"{subject}: the schema allows {type_names}; the arguments of a function are an object"
        )
    return schema


Parameters = Annotated[Schema, AfterValidator(_check_object)]
"""The schema of a function's arguments. Its field must follow `name` and `strict`, which the validation reads."""


class FunctionDefinition(RequestModel):
    """A function that the model may ask to be called."""

    name: ToolName
    description: str | None = None
    strict: bool | None = None
    parameters: Parameters | None = None


class Tool(fields_of("chat.tools")):
    """A tool. Only functions are supported."""

    type: Literal["function"]
    function: FunctionDefinition


class LeftOut(RequestModel):
    """A tool that the server cannot run. The model does not see it, and the `Warning` header names it."""

    model_config = ConfigDict(extra="ignore")

    type: str
    name: str | None = None

    @property
    def shown(self) -> str:
        """Its name, safe in headers and logs."""
        return shown_name(self.name or self.type)

    def without_effect(self, *, reads_thoughts: bool) -> Iterator[str]:
        yield f"tool {self.shown}"


PlacedTool = tuple[str, FunctionDefinition | LeftOut]
"""The place of a tool in the client's request, and the tool."""
AnyTool = TypeVar("AnyTool")
ToolList = Annotated[ListOf[AnyTool], Field(max_length=MAX_TOOLS)]
AtLeastOne = Annotated[ListOf[AnyTool], Field(min_length=1)]
Tools = ToolList[Annotated[Tool | LeftOut, by_type("a tool")]]


class FunctionName(RequestModel):
    """A function by its name."""

    name: str


class NamedTool(RequestModel):
    """The function that must be called."""

    type: Literal["function"]
    function: FunctionName

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.name


class AllowedTools(RequestModel):
    """A subset of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: AtLeastOne[Annotated[NamedTool, by_type("a tool to be called")]]


class AllowedToolsChoice(RequestModel):
    """The tools that may be called in this turn. The model sees all tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


Mode = Literal["none", "auto", "required"]
"""Whether tools may or must be called, here and in /v1/responses."""


class ChatOrigin(NamedTuple):
    """The request of a client that a chat is made of.

    Attributes:
        api: name of the API in `FIELDS` and `NAMES`.
        tool_paths: the place of each tool in the request.
    """

    api: str
    tool_paths: Sequence[str]


class ChatRequest(SeveralTexts, PromptEnd, fields_of("chat")):
    """A conversation whose next answer is wanted."""

    tools: Tools | None = Field(None, description=TOOLS)
    tool_choice: Annotated[Mode | NamedTool | AllowedToolsChoice, by_type("a tool_choice")] | None = Field(
        None, description="none, auto (the default), required, one function by name, or a subset of the tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false allows at most one call in a reply")
    messages: Messages = Field(description=f"roles system, developer, user, assistant and tool; {CONTENT}")
    max_completion_tokens: TokenCount | None = Field(None, description=ANSWER_LIMIT)
    max_tokens: TokenCount | None = Field(None, description="older name of max_completion_tokens")
    logprobs: bool | None = Field(None, description="return the target model's own log-probability of every token")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="number of most likely tokens to list for each token; needs logprobs"
    )
    response_format: Annotated[PlainFormat | JsonSchemaFormat, by_type("a form")] | None = Field(
        None, description="text, json_object or json_schema"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="vLLM: variables of the model's chat template, such as enable_thinking"
    )
    reasoning_effort: str | None = Field(
        None, description="how much to reason, or none; only if the model's chat template supports it"
    )
    modalities: ListOf[Literal["text"]] | None = Field(None, description="only text")
    _functions: Mapping[str, FunctionDefinition] = PrivateAttr()

    def model_post_init(self, context: ChatOrigin | ServedModel | None) -> None:
        """Store the API that was called, and the functions of the tools by their places in its request."""
        tools = self.tools or ()
        self._api, paths = context if isinstance(context, ChatOrigin) else ("chat", ())
        placed_tools = zip(paths or (f"tools.{index}.function" for index in range(len(tools))), tools, strict=True)
        self._functions = {path: tool.function for path, tool in placed_tools if isinstance(tool, Tool)}

    @classmethod
    def of(cls, api_request: RequestModel, api: str, placed_tools: Sequence[PlacedTool], **chat_fields: Any) -> Self:
        """Convert a request of another API to a chat.

        Args:
            api_request: the request, whose `SamplingFields` are copied.
            api: name of the API in `FIELDS` and `NAMES`.
            placed_tools: the tools.
            **chat_fields: the other fields of the chat, either validated or as a client would send them.

        Raises:
            ServerError: the chat is invalid; the error uses the API's names of fields.
        """
        sampling_fields = {
            name: getattr(api_request, name) for name in SamplingFields.model_fields if hasattr(api_request, name)
        }
        tools = [
            tool if isinstance(tool, LeftOut) else Tool(type="function", function=tool) for _, tool in placed_tools
        ]
        paths = [path for path, _ in placed_tools]
        try:
            origin = ChatOrigin(api, paths)
            return cls.model_validate({"tools": tools or None, **sampling_fields, **chat_fields}, context=origin)
        except ValidationError as error:
            names = {field: api_names[api] for field, api_names in NAMES.items() if api in api_names}
            raise refusal_of(error.errors()[0], names) from None

    @model_validator(mode="after")
    def _check_last_message(self) -> Self:
        """Refuse unsupported parts in the user's last message, unless it follows the result of a tool."""
        if self._api != "chat":  # another API has checked this itself
            return self
        message_index = len(self.messages) - 1
        if message_index > 0 and self.messages[message_index].role == "assistant":  # which the answer continues
            message_index -= 1
        message = self.messages[message_index]
        previous_message = self.messages[message_index - 1] if message_index > 0 else None
        if message.role == "user" and not (previous_message and previous_message.role == "tool"):
            refuse_unserved(message.content, "a content part", "text", "messages", message_index, "content")
        return self

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        names = set[str]()
        for path, function in self._functions.items():
            if function.name in names:
                message = f"two tools have the name {function.name!r}; give one of them another"
                raise mistake("duplicate_tool", message, f"{path}.name")
            names.add(function.name)
        mode, chosen_names = self._tool_mode_and_names
        if not self.tools and self.tool_choice not in (None, "none", "auto"):
            raise mistake("no_tools", "this asks for a call, but there are no tools; give tools", "tool_choice")
        if missing_name := next((name for name in chosen_names or () if name not in names), None):
            message = (
                f"this names {missing_name!r}, which the server cannot run; "
                "leave out the choice, or choose another tool"
            )
            if missing_name not in self.left_out:
                message = str(unknown("tool", missing_name[:LONGEST_NAME], names))
            raise mistake("unknown_tool", message, "tool_choice")
        if mode == "required" and chosen_names is None and self.left_out:
            message = f"this asks for a call, but the server cannot run {self.left_out[0]!r}; leave it out of the tools"
            raise mistake("not_served", message, "tool_choice")
        return self

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise mistake("two_limits", "this differs from max_tokens; give one of them", "max_completion_tokens")
        if self.top_logprobs and not self.logprobs:
            raise mistake("no_logprobs", "this needs logprobs to be true", "top_logprobs")
        if self.structured_outputs and (self.tools or self.response_format):
            message = f"this excludes tools and {self.called('response_format')}; give one of them"
            raise mistake("two_forms", message, "structured_outputs")
        return self

    @property
    def _tool_mode_and_names(self) -> tuple[str, list[str] | None]:
        """Whether tools may or must be called, and the names of those tools; None for all tools."""
        match self.tool_choice:
            case NamedTool(name=name) | FunctionName(name=name):  # the latter from other APIs
                return "required", [name]
            case AllowedToolsChoice(allowed_tools=allowed) | (AllowedTools() as allowed):
                return allowed.mode, [tool.name for tool in allowed.tools]
            case mode:
                return mode or "auto", None

    @property
    def images(self) -> list[tuple[int, ImagePart]]:
        """The images of the conversation in order, each with the number of its message."""
        return [(number, image) for number, message in enumerate(self.messages, start=1) for image in message.images]

    @property
    def must_call(self) -> bool:
        """Whether the reply must call a tool."""
        return self._tool_mode_and_names[0] == "required"

    @property
    def told_tools(self) -> list[Tool]:
        """The tools that the prompt describes."""
        return [] if self.tool_choice == "none" else [tool for tool in self.tools or () if isinstance(tool, Tool)]

    @property
    def left_out(self) -> tuple[str, ...]:
        """The names of the tools that the server cannot run."""
        return tuple(tool.shown for tool in self.tools or () if isinstance(tool, LeftOut))

    @property
    def callable_tools(self) -> dict[str, FunctionDefinition]:
        """The tools that may be called in this reply, by the places of their schemas in the client's request."""
        mode, names = self._tool_mode_and_names
        return {
            f"{path}.{self.called('parameters')}": function
            for path, function in self._functions.items()
            if mode != "none" and (names is None or function.name in names)
        }

    @property
    def said_form(self) -> StructuredOutputs | None:
        """The form of the answer's text; None for any text."""
        match self.response_format:
            case None | PlainFormat(type="text"):
                return self.structured_outputs
            case PlainFormat():
                return StructuredOutputs(json_object=True)
            case JsonSchemaFormat(json_schema=form) | form:  # the latter from other APIs
                return StructuredOutputs.model_construct(json_schema=form.body)

    @property
    def has_form(self) -> bool:
        """Whether the whole answer must have a form: a schema, a grammar, or a tool call."""
        return self.must_call or self.said_form is not None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; None if the request has no limit."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> bool | int | None:
        """The value of the engine's option `logprobs`."""
        return (self.top_logprobs or True) if self.logprobs else None
