"""What the requests have in common: how tokens are chosen, where a text ends, what form it has, how it is sent.

Unknown fields, other types and numbers that are none are refused.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

from drafttree.constraints.json_schema import drop_nulls
from drafttree.constraints.refusals import Refused

SURROGATE = re.compile("[\ud800-\udfff]")


class RequestModel(BaseModel):
    """A part of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_characters(cls, part: Any) -> Any:
        """Refuse half surrogate pairs, which JSON can escape and neither tokenizers nor replies can have."""
        if place := _half_character(part):
            where = ".".join(map(str, place)).encode(errors="backslashreplace").decode()
            raise mistake("string_unicode", f"{where} holds half a surrogate pair, which is not text")
        return part

    def without_effect(self, *, reads_thoughts: bool) -> Iterator[str]:
        """The names of the fields that were given and change nothing, here and in all parts.

        Args:
            reads_thoughts: whether the chat template reads what was thought.
        """
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            idle = NO_EFFECT in field.metadata or (THOUGHT in field.metadata and not reads_thoughts)
            if idle and value not in (None, {}, []) and value is not False:
                yield name
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, RequestModel):
                    yield from part.without_effect(reads_thoughts=reads_thoughts)


def _half_character(part: Any) -> tuple[str | int, ...]:
    """The steps to a text in a part of a request that holds half a surrogate pair; none where there is none."""
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), part)]
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, str) and not found.isascii() and SURROGATE.search(found):
            return place
        if isinstance(found, dict):
            waiting += [((*place, name), each) for name, value in found.items() for each in (name, value)]
        elif isinstance(found, list):
            waiting += [((*place, index), value) for index, value in enumerate(found)]
    return ()


def mistake(kind: str, message: str) -> PydanticCustomError:
    """The error for a value that is wrong in a way of ours; its message may have braces."""
    return PydanticCustomError(kind, "{message}", {"message": message})  # pyright: ignore[reportArgumentType]


def check_kind(part: Any, what: str, served: Sequence[str]) -> Any:
    """A part of a request as it is, unless its `type` is one that is not served, which is named."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind not in served:
        *most, last = served
        advice = f"{', '.join(most)} or {last}" if most else last
        raise mistake("not_served", f"{what} of type {kind!r} is not served; give {advice}")
    return part


def fill_content(message: Any) -> Any:
    """A message as it is, unless it is one of the assistant's without content, as beside calls: that has no parts."""
    if isinstance(message, dict) and message.get("role") == "assistant" and message.get("content") is None:
        return {**message, "content": []}
    return message


NO_EFFECT = "no effect"
"""Marks a field that changes no text; a reply's `Warning` header names those that its request has."""
THOUGHT = "thought"
"""Marks a field with what a model has thought before, which has no effect where the chat template does not read it."""


@dataclass(frozen=True)
class NotServed:
    """Marks a field of OpenAI's or vLLM's that is refused by name, unless its value asks for nothing.

    Attributes:
        advice: what to do instead.
        neutral: values besides None and False that ask for nothing.
        code: the word by which programs know the error.
    """

    advice: str
    neutral: tuple[Any, ...] = ()
    code: str = "not_served"

    def check(self, value: object) -> None:
        """Refuse a value that asks for something."""
        asks_nothing = isinstance(value, list | dict) and value in ([], {}, *self.neutral)
        if not asks_nothing and not Refused(self.advice, self.neutral).accepts(value):
            raise mistake(self.code, f"this is not served; {self.advice}")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [None, False, *self.neutral], "description": f"Not served: {self.advice}."}


MAX_NESTING = 100
"""Levels of a JSON object; what a reply repeats must be written as well as read, which pydantic does for 255."""


def _check_json(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse what Python's parser takes and JSON does not know, or what is nested too deeply."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING):
        level = [part for each in level for part in _parts(each)]
    if level:
        raise mistake("nested_too_deeply", f"this is nested more than {MAX_NESTING} levels deep")
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise mistake("no_json", f"this is not JSON: {error}") from None
    return value


def _parts(value: Any) -> Iterable[Any]:
    """What an object or a list consists of."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


JsonObject = Annotated[dict[str, Any], AfterValidator(_check_json)]
"""A JSON object of any kind."""
Schema = Annotated[JsonObject, AfterValidator(drop_nulls)]
"""A JSON schema."""
NAME = r"^[a-zA-Z0-9_-]{1,64}$"


class TextFormat(RequestModel):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestModel):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchema(RequestModel):
    """A schema and its name, which has no effect on the reply."""

    name: Annotated[str, Field(pattern=NAME)]
    body: Annotated[Schema, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(RequestModel):
    """JSON that conforms to a schema; it does so whether or not it is to be strict."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(RequestModel):
    """One form that the whole reply must have.

    Attributes:
        json_schema: a JSON schema, as an object or as text; named `json` in requests.
        regex: a regular expression that matches the whole reply.
        choice: the replies there may be.
        grammar: an EBNF grammar in GBNF syntax.
        json_object: True for any JSON object.
    """

    json_schema: Annotated[Schema | str | None, Field(alias="json")] = None
    regex: str | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: str | None = None
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(value is not None for _, value in self) != 1:
            raise mistake("one_form", "give exactly one of json, regex, choice, grammar and json_object")
        return self


MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 16
INT64 = 2**63
TOKEN_ID = re.compile("[0-9]{1,10}")

StopString = Annotated[str, Field(min_length=1, max_length=1000)]
StopStrings = Annotated[
    list[StopString],
    Field(max_length=MAX_STOPS),
    BeforeValidator(
        lambda stop: [*filter(None, [stop])] if isinstance(stop, str) else stop,
        json_schema_input_type=str | list[StopString],
    ),
]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[int, Field(ge=0, lt=INT64)]
TokenCount = Annotated[int, Field(ge=1, lt=INT64)]


class StreamOptions(RequestModel):
    """What a stream has besides the text.

    Attributes:
        include_usage: end with a chunk that has the usage and no choices.
        continuous_usage_stats: vLLM's: give every chunk the usage so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[object, NotServed("chunks are not padded; leave it out")] = None


class SamplingFields(RequestModel):
    """Fields of all requests for texts."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    stream: bool | None = Field(None, description="send the text while it is generated, as server-sent events")
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = Field(
        None, description="the same prompt, options and seed give the same text, whatever else the server does"
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        None, description="0 is greedy; default: the model's own, or else 1"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="nucleus sampling")
    stop: StopStrings | None = Field(
        None,
        description=f"up to {MAX_STOPS} strings that end the text and are not part of it; an empty string means none",
    )
    presence_penalty: Penalty | None = Field(None, description="penalty on tokens that the text already contains")
    frequency_penalty: Penalty | None = Field(
        None, description="penalty on tokens that the text already contains, for each occurrence"
    )
    logit_bias: dict[str, Bias] | None = Field(
        None, description="token ids, as strings, each with the value to add to its logit"
    )
    user: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect")
    top_k: Annotated[int, Field(ge=-1, lt=INT64)] | None = Field(
        None, description="vLLM: sample from the k most likely tokens; -1 for all"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="vLLM: minimum probability of a token, relative to that of the most likely one"
    )
    repetition_penalty: Annotated[float, Field(gt=0)] | None = Field(
        None, description="vLLM: divides the logits of tokens that occur in the prompt or the text"
    )
    min_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = Field(
        None, description="vLLM: minimum number of tokens before an EOS or stop token"
    )
    stop_token_ids: list[TokenId] | None = Field(None, description="vLLM: tokens that end the text, in addition to EOS")
    ignore_eos: bool | None = Field(None, description="vLLM: continue after EOS tokens")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="vLLM: exactly one of json, regex, choice, grammar (GBNF) and json_object"
    )
    skip_special_tokens: Literal[True] | None = Field(
        None, description="vLLM: only true; texts contain no special tokens"
    )
    use_beam_search: Annotated[object, NotServed("a draft tree belongs to one text")] = None
    length_penalty: Annotated[object, NotServed("it applies only to beam search", (1,))] = None
    bad_words: Annotated[object, NotServed("give logit_bias")] = None
    allowed_token_ids: Annotated[object, NotServed("give structured_outputs")] = None
    include_stop_str_in_output: Annotated[object, NotServed("texts end before a stop string")] = None
    truncate_prompt_tokens: Annotated[object, NotServed("shorten the prompt")] = None
    prompt_logprobs: Annotated[object, NotServed("give echo and logprobs to /v1/completions")] = None
    return_token_ids: Annotated[object, NotServed("leave it out")] = None
    kv_transfer_params: Annotated[object, NotServed("the server that answers also processes the prompt")] = None
    priority: Annotated[object, NotServed("requests are served in the order they come", (0,))] = None

    @field_validator("logit_bias")
    @classmethod
    def _check_token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        wrong = next((token for token in bias or () if not TOKEN_ID.fullmatch(token)), None)
        if wrong is not None:
            raise mistake("no_token_id", f"{wrong[:40]!r} is not a token id")
        return bias


class SeveralTexts(SamplingFields):
    """Fields of the requests for chat completions and completions, which may ask for several texts."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="number of texts; with a seed, text i uses seed + i, counted from 0"
    )
    stream_options: StreamOptions | None = Field(
        None, description="include_usage, and vLLM's continuous_usage_stats; only with stream"
    )

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise mistake("no_stream", "stream_options needs stream to be true")
        return self

    @property
    def choices(self) -> int:
        """Texts for each prompt."""
        return self.n or 1
