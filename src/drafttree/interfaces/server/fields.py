"""Base of the pydantic models of requests, which refuse unknown fields, other types, and NaN.

Fields without effect and fields that are refused come from one table, `FIELDS` in `unsupported_fields.py`.
"""

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    Tag,
    TypeAdapter,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError

from drafttree.constraints.json_schema import drop_nulls
from drafttree.constraints.refusals import NoEffect
from drafttree.interfaces.server.errors import BRANCH, LONGEST_NAME
from drafttree.interfaces.server.unsupported_fields import FIELDS, RefusedField

THOUGHT = "thought"
"""Marks a field with earlier thinking, which has no effect unless the chat template reads it."""
NAMES: dict[str, dict[str, str]] = {
    "messages": {"completions": "prompt", "responses": "input"},
    "max_completion_tokens": {"responses": "max_output_tokens", "messages": "max_tokens"},
    "max_tokens": {"responses": "max_output_tokens"},
    "response_format": {"responses": "text.format", "messages": "output_config.format"},
    "reasoning_effort": {"responses": "reasoning.effort"},
    "parameters": {"messages": "input_schema"},
    "stop": {"messages": "stop_sequences"},
}
"""By field of a chat: its names in the APIs that name it differently."""
Item = TypeVar("Item")
ListOf = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose validation ends at its first mistake, because a reply names only one. `ITEM_BY_ITEM` is for objects."""


class ServedModel(NamedTuple):
    """What the validation of a request needs to know of the served model; pydantic passes it on as its context.

    Attributes:
        reads_images: whether the model reads images.
    """

    reads_images: bool = False


TEXT_MODEL = ServedModel()
"""A model that reads text alone."""


class RequestModel(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @classmethod
    def is_served(cls, context: object) -> bool:
        """Whether the served model reads such parts; `context` is a `ServedModel`, or None if it is not known."""
        return True

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_fields(cls, value: Any) -> Any:
        """Refuse the first unknown field before anything else is validated, because there may be 100,000 of them."""
        if not isinstance(value, dict) or cls.model_config.get("extra") != "forbid":
            return value
        field_names = _known_fields(cls)
        if (unknown_name := next((name for name in value if name not in field_names), None)) is not None:
            raise mistake(
                "extra_forbidden",
                f"there is no such field; {_advice(cls, unknown_name, value[unknown_name])}",
                unknown_name,
            )
        return value

    def without_effect(self, *, reads_thoughts: bool) -> Iterator[str]:
        """Yield the names of fields in the request that have no effect, of this part and all parts inside it.

        Args:
            reads_thoughts: whether the chat template reads earlier thinking.
        """
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            is_idle = isinstance(entry_of(field), NoEffect) or (THOUGHT in field.metadata and not reads_thoughts)
            if is_idle and value not in (None, {}, []) and value is not False:
                yield name
            for element in value if isinstance(value, list) else [value]:
                if isinstance(element, RequestModel):
                    yield from element.without_effect(reads_thoughts=reads_thoughts)


@cache
def _known_fields(part_model: type[RequestModel]) -> set[str]:
    """The names of a model's fields in requests."""
    return {info.alias or name for name, info in part_model.model_fields.items()}


def _advice(part_model: type[RequestModel], unknown_name: str, value: object) -> str:
    """Advice on an unknown field, for the error."""
    refused_fields = {
        name for name, info in part_model.model_fields.items() if isinstance(entry_of(info), RefusedField)
    }
    served_fields = _known_fields(part_model) - refused_fields
    for name, api_names in NAMES.items():
        fields = {path.partition(".")[0]: path for path in (name, *api_names.values())}
        if unknown_name in fields and (
            served_path := next((path for root, path in fields.items() if root in served_fields), None)
        ):
            return f"did you mean {served_path!r}?"
    parent_fields = [
        name
        for name, info in part_model.model_fields.items()
        if name in served_fields and any(unknown_name in _known_fields(model) for model in _models_of(info.annotation))
    ]
    if len(parent_fields) == 1:
        return f"it belongs in {parent_fields[0]!r}"
    if isinstance(value, dict) and value and value.keys() <= served_fields:
        return f"give {', '.join(value)} in its place"
    nearest_names = difflib.get_close_matches(unknown_name[:LONGEST_NAME], served_fields, n=1, cutoff=0.75)
    return f"did you mean {nearest_names[0]!r}?" if nearest_names else "leave it out"


def _models_of(annotation: Any) -> list[type[RequestModel]]:
    """The models that a field may hold, except in lists."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, RequestModel) else []
    variants = get_args(annotation) if get_origin(annotation) in (Annotated, Union, UnionType) else ()
    return [model for variant in variants for model in _models_of(variant)]


def mistake(error_type: str, message: str, *location: str | int) -> PydanticCustomError:
    """A validation error with our own message. Braces in it need no escapes.

    Args:
        error_type: the type of the error.
        message: the message.
        *location: the place of the error inside the value.
    """
    context = {"message": message, "place": location}
    return PydanticCustomError(error_type, "{message}", context)  # pyright: ignore[reportArgumentType]


def not_served(part_name: str, type_name: str, served: Sequence[str]) -> PydanticCustomError:
    """The validation error for a part whose `type` is not supported."""
    return mistake(
        "not_served", f"{part_name} of type {type_name[:LONGEST_NAME]!r} is not served; give {_listed(served)}"
    )


def _listed(names: Sequence[str]) -> str:
    *other_names, last_name = names
    return f"{', '.join(other_names)} or {last_name}" if other_names else last_name


class TypeChoice:
    """A choice among several models by the `type` of a value, or among literal texts.

    A value without `type` belongs to the model in which `type` is optional. A value of a type that is unknown, or not
    served by the model, belongs to the model that accepts any `type`; without such a model it is refused.

    Args:
        part_name: the name of the part in errors.
        members: the models, and `Literal` types of the texts.
    """

    def __init__(self, part_name: str, members: Sequence[Any]) -> None:
        types = {model: model.model_fields["type"] for model in members if isinstance(model, type)}
        self._part_name = part_name
        self._served = {name: model for model, field in types.items() for name in get_args(field.annotation) if name}
        self._default = next((model for model, field in types.items() if not field.is_required()), None)
        self._other = next((model for model, field in types.items() if field.annotation is str), None)
        self._words = {word: words for words in members if get_origin(words) is Literal for word in get_args(words)}

    def member_of(self, value: Any) -> Any:
        """The member that a value belongs to.

        Raises:
            PydanticCustomError: the value belongs to no member.
        """
        if not isinstance(value, dict):
            return self._text_of(value)
        name = value.get("type")
        choices = [*self._words, *self._served]
        if name is None and self._default:
            return self._default
        if not isinstance(name, str):
            raise mistake("missing", f"give the type of {self._part_name}: {_listed([*self._served])}", "type")
        if name in self._words:
            raise mistake("literal_error", f'give "{name}" as a text, not as an object')
        if (model := self._served.get(name, self._other)) is None:
            raise not_served(self._part_name, name, choices)
        return model

    def _text_of(self, value: Any) -> Any:
        """The `Literal` type that a text belongs to.

        Raises:
            PydanticCustomError: the value is not a text, or no `Literal` type has it.
        """
        if isinstance(value, str) and value in self._words:
            return self._words[value]
        if isinstance(value, str) and value in self._served:
            raise mistake("model_type", f'give {{"type": "{value}"}}')
        if self._words:
            raise mistake("literal_error", f"give {_listed([*self._words, *self._served])}")
        raise mistake("model_type", "")

    def stand_in_of(self, member: Any, context: object) -> type[RequestModel] | None:
        """The model of any `type`, if it takes the place of a member that is not served."""
        is_served = not isinstance(member, type) or member.is_served(context)
        return None if is_served else self._other

    def branch_of(self, value: Any) -> str:
        """The name of a value's member in the location of pydantic's errors. The value may already be an instance."""
        return _branch(type(value) if isinstance(value, RequestModel) else self.member_of(value))


def _branch(member: Any) -> str:
    return BRANCH.format(member.__name__ if isinstance(member, type) else "text")


def by_type(part_name: str) -> GetPydanticSchema:
    """Annotation: validate a value as the member of a union that its `type` selects. See `TypeChoice`.

    Instances of `RequestModel` stay as they are, because another API has validated them already.

    Args:
        part_name: the name of the part in errors.
    """

    def schema_of(annotation: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
        choice = TypeChoice(part_name, members)
        if len(members) > 1:
            tagged_members = tuple(Annotated[member, Tag(_branch(member))] for member in members)
            annotation = Annotated[reduce(or_, tagged_members), Discriminator(choice.branch_of)]

        def read(value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
            if isinstance(value, RequestModel):
                return value
            member = choice.member_of(value)  # raises our error before pydantic would raise its own
            stand_in = choice.stand_in_of(member, info.context)
            return stand_in.model_validate(value, context=info.context) if stand_in else check(value)

        return handler(Annotated[annotation, WrapValidator(read)])

    return GetPydanticSchema(schema_of, _any_of)


def _any_of(schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """JSON schema of a union with `anyOf`. `oneOf` would forbid values that also fit the model of any `type`."""
    return {"anyOf" if keyword == "oneOf" else keyword: value for keyword, value in handler(schema).items()}


def or_text(as_list: Callable[[str], list[Any]] = lambda text: [{"type": "text", "text": text}]) -> GetPydanticSchema:
    """Annotation: also accept text instead of a list. `as_list` converts it, by default to a list of one text part."""

    def read(value: Any) -> Any:
        if isinstance(value, str | list):
            return as_list(value) if isinstance(value, str) else value
        raise mistake("list_type", "give a text or a list")

    def schema_of(annotation: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        reading = BeforeValidator(read, json_schema_input_type=str | annotation)
        return reading.__get_pydantic_core_schema__(annotation, handler)

    return GetPydanticSchema(schema_of)


class ConversationTurn(RequestModel):
    """A turn of a conversation. The assistant's content may be missing, for example if it only calls tools."""

    @model_validator(mode="before")
    @classmethod
    def _fill_content(cls, turn: Any) -> Any:
        if isinstance(turn, dict) and turn.get("role") == "assistant" and turn.get("content") is None:
            return {**turn, "content": []}
        return turn


def fields_of(part_name: str) -> type[RequestModel]:
    """A base model with the unsupported fields of a part of a request, from `FIELDS`.

    If a request has fields without effect, the reply's `Warning` header names them.
    """
    model_fields: dict[str, Any] = {}
    for name, entry in FIELDS[part_name].items():
        if isinstance(entry, NoEffect):
            field_type = entry.kind if entry.kind is object else entry.kind | None
            model_fields[name] = Annotated[field_type, entry], Field(None, description=entry.why)
        elif isinstance(entry, RefusedField):
            schema = {"enum": [None, False, *entry.neutral], "description": f"Not served: {entry.advice}."}
            check = AfterValidator(partial(_check_refused, entry))
            model_fields[name] = Annotated[object, check, WithJsonSchema(schema), entry], None
    return create_model(part_name, __base__=RequestModel, **model_fields)


def _check_refused(entry: RefusedField, value: object) -> object:
    """Refuse a value unless it requests nothing."""
    if (entry.empty and value in ([], {})) or entry.accepts(value):
        return value
    raise mistake(entry.code, f"this is not served; {entry.advice}")


def entry_of(field: FieldInfo) -> NoEffect | RefusedField | None:
    """The entry of a field in `FIELDS`; None if it has none."""
    return next((mark for mark in field.metadata if isinstance(mark, NoEffect | RefusedField)), None)


MAX_NESTING = 100
"""The most levels of a JSON object. A reply may repeat the object, and pydantic writes at most 255 levels."""


def _check_json(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse values that Python's parser accepts but JSON does not have, and objects that are nested too deeply."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        containers = [container for container in level if isinstance(container, dict | list)]
        level = [
            member
            for container in containers
            for member in (container.values() if isinstance(container, dict) else container)
        ]
    if level:
        raise mistake("nested_too_deeply", f"this is nested more than {MAX_NESTING} levels deep")
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise mistake("no_json", f"this is not JSON: {error}") from None
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_json)]
"""A JSON object of any kind."""
Schema = Annotated[JsonObject, AfterValidator(drop_nulls)]
"""A JSON schema."""
SCHEMA = TypeAdapter[Any](Schema)
SchemaOrText = Annotated[
    Schema | str, WrapValidator(lambda value, _: value if isinstance(value, str) else SCHEMA.validate_python(value))
]


class PlainFormat(RequestModel):
    """Without a schema: any text, or any JSON object."""

    type: Literal["text", "json_object"]


class JsonSchema(RequestModel):
    """A schema with a name. The name has no effect."""

    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    body: Annotated[Schema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(RequestModel):
    """JSON that conforms to a schema, whether or not the request says `strict`."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


class StructuredOutputs(RequestModel):
    """The form that the whole reply must have: exactly one of these.

    Attributes:
        json_schema: a JSON schema, as an object or as text; named `json` in requests.
        regex: a regular expression that matches the whole reply.
        choice: the allowed replies.
        grammar: an EBNF grammar in GBNF syntax.
        json_object: True for any JSON object.
    """

    json_schema: Annotated[SchemaOrText | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[ListOf[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(value is not None for _, value in self) != 1:
            raise mistake("one_form", "give exactly one of json, regex, choice, grammar and json_object")
        return self
