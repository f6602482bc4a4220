"""The requests to /v1/chat/completions and /v1/completions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from drafttree.interfaces.server.protocol.messages import Messages, PromptEnd, ToolFields
from drafttree.interfaces.server.protocol.request_fields import (
    INT64,
    MAX_LOGPROBS,
    NO_EFFECT,
    JsonObjectFormat,
    JsonSchemaFormat,
    NotServed,
    ResponseFormat,
    SamplingFields,
    SeveralTexts,
    TokenCount,
    TokenId,
    mistake,
)

NOTHING_STORED = "no effect: nothing is stored"
FOUND_BY_ITSELF = "no effect: the server finds common prefixes automatically"
ANSWER_LIMIT = "maximum number of tokens; default: the model's own, or else 2,048, limited by the context"


class ChatRequest(SeveralTexts, ToolFields, PromptEnd):
    """A conversation whose next answer is wanted."""

    messages: Messages = Field(description="roles system, developer, user, assistant and tool; content is text")
    max_completion_tokens: TokenCount | None = Field(None, description=ANSWER_LIMIT)
    max_tokens: TokenCount | None = Field(None, description="older name of max_completion_tokens")
    logprobs: bool | None = Field(None, description="return the target model's own log-probability of every token")
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="number of most likely tokens to list for each token; needs logprobs"
    )
    response_format: ResponseFormat | None = Field(None, description="text, json_object or json_schema")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="vLLM: variables of the model's chat template, such as enable_thinking"
    )
    reasoning_effort: str | None = Field(
        None, description="how much to reason, or none; only if the model's chat template supports it"
    )
    modalities: list[Literal["text"]] | None = Field(None, description="only text")
    service_tier: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect: there is one tier")
    verbosity: Annotated[Literal["low", "medium", "high"] | None, NO_EFFECT] = Field(None, description="no effect")
    safety_identifier: Annotated[str | None, NO_EFFECT] = Field(None, description="no effect")
    metadata: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description=NOTHING_STORED)
    store: Annotated[bool | None, NO_EFFECT] = Field(None, description=NOTHING_STORED)
    prompt_cache_key: Annotated[str | None, NO_EFFECT] = Field(None, description=FOUND_BY_ITSELF)
    prompt_cache_options: Annotated[dict[str, Any] | None, NO_EFFECT] = Field(None, description=FOUND_BY_ITSELF)
    prompt_cache_retention: Annotated[str | None, NO_EFFECT] = Field(None, description=FOUND_BY_ITSELF)
    audio: Annotated[object, NotServed("the model writes text")] = None
    functions: Annotated[object, NotServed("it is deprecated; give tools")] = None
    function_call: Annotated[object, NotServed("it is deprecated; give tool_choice")] = None
    moderation: Annotated[object, NotServed("there is no moderation")] = None
    prediction: Annotated[object, NotServed("the drafter predicts; start the server with --drafter lookup")] = None
    web_search_options: Annotated[object, NotServed("there is no search; give a tool")] = None
    chat_template: Annotated[object, NotServed("the server's own template is used")] = None
    documents: Annotated[object, NotServed("give them as messages")] = None

    @classmethod
    def of(cls, given: SamplingFields, **own: Any) -> Self:
        """The chat that a request of another API asks for.

        Args:
            given: the request; the fields that all requests for texts have are the chat's.
            **own: the other fields of the chat.

        Raises:
            ValidationError: a chat may not have these fields, or not together.
        """
        shared = {name: getattr(given, name) for name in SamplingFields.model_fields}
        return cls.model_validate(shared | own)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        older, newer = self.max_tokens, self.max_completion_tokens
        if older is not None and newer is not None and older != newer:
            raise mistake("two_limits", "max_tokens and max_completion_tokens differ; give one of them")
        if self.top_logprobs and not self.logprobs:
            raise mistake("no_logprobs", "top_logprobs needs logprobs to be true")
        if self.structured_outputs and (self.tools or self.response_format):
            raise mistake("two_forms", "structured_outputs excludes tools and response_format")
        return self

    @property
    def has_form(self) -> bool:
        """Whether a whole answer must have a form: a schema, a grammar, or a call."""
        formats = JsonObjectFormat | JsonSchemaFormat
        return self.must_call or bool(self.structured_outputs) or isinstance(self.response_format, formats)

    @property
    def limit(self) -> int | None:
        """Tokens of an answer at most, None where the request does not say."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> bool | int | None:
        """The engine's option."""
        return (self.top_logprobs or True) if self.logprobs else None


@contextmanager
def chat_mistakes() -> Iterator[None]:
    """Tell what is wrong with a chat as what is wrong with the request of another API that asks for it.

    Raises:
        PydanticCustomError: says the same in one line.
    """
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise mistake(first["type"], f"{place}: {first['msg']}" if place else first["msg"]) from None


MAX_PROMPTS = 256
DEFAULT_LIMIT = 16

Text = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]


def _as_list(prompt: object) -> object:
    """A list of prompts."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and not isinstance(prompt[0], str | list)):
        prompt = [prompt]
    if not isinstance(prompt, list) or not (_all(prompt, str) or all(_all(each, int) for each in prompt)):
        raise mistake("wrong_prompt", "a prompt is text, a list of texts, token ids, or a list of lists of token ids")
    if not prompt or not all(prompt):
        raise mistake("empty_prompt", "a prompt is empty; give at least one token")
    tokens = (token for each in prompt for token in each if isinstance(token, int))
    if wrong := next((token for token in tokens if not 0 <= token < INT64), None):
        raise mistake("no_token_id", f"{wrong if abs(wrong) < INT64 else 'a number above 64 bits'} is not a token id")
    return prompt


def _all(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


Prompts = Annotated[
    list[Text] | list[TokenIds],
    Field(max_length=MAX_PROMPTS),
    BeforeValidator(_as_list, json_schema_input_type=Text | list[Text] | TokenIds | list[TokenIds]),
]


class CompletionRequest(SeveralTexts):
    """Prompts whose continuations are wanted."""

    prompt: Prompts = Field(description="a text, a list of texts, token ids, or a list of lists of token ids")
    max_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = Field(
        None, description="maximum number of tokens; default: 16; with echo, 0 is possible"
    )
    echo: bool | None = Field(None, description="start the text with the prompt")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None,
        description="return the target model's own log-probability of every token, and of this many most likely tokens",
    )
    best_of: Annotated[object, NotServed("give n", (1,))] = None
    suffix: Annotated[object, NotServed("text is only generated after the prompt", ("",))] = None
    add_special_tokens: Annotated[object, NotServed("give token ids for a prompt without special tokens", (True,))] = (
        None
    )

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        if self.limit == 0 and not self.echo:
            raise mistake("no_tokens", "max_tokens is 0, so there is nothing to send without echo")
        return self

    @property
    def limit(self) -> int:
        """Tokens of a text at most."""
        return DEFAULT_LIMIT if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> bool | int | None:
        """The engine's option."""
        return (self.logprobs or True) if self.logprobs is not None else None
