"""A request to /v1/completions."""

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from drafttree.interfaces.server.protocol.request_model import NotServed, mistake
from drafttree.interfaces.server.protocol.sampling_fields import MAX_LOGPROBS, SamplingFields, TokenId

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
    if any(not _is_text(each) for each in prompt if isinstance(each, str)):
        raise mistake("string_unicode", "a prompt holds half a surrogate pair, which is no text")
    if negative := next((token for each in prompt for token in each if isinstance(token, int) and token < 0), None):
        raise mistake("no_token_id", f"{negative} is no token id")
    return prompt


def _is_text(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _all(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


Prompts = Annotated[
    list[Text] | list[TokenIds],
    Field(max_length=MAX_PROMPTS),
    BeforeValidator(_as_list, json_schema_input_type=Text | list[Text] | TokenIds | list[TokenIds]),
]


class CompletionRequest(SamplingFields):
    """Prompts whose continuations are wanted."""

    prompt: Prompts = Field(description="text, a list of texts, token ids, or a list of lists of them")
    max_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="tokens at most, 16 by default; 0, with echo, for none"
    )
    echo: bool | None = Field(None, description="begin the text with the prompt")
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="the target model's own log-probability of every token, and so many likeliest ones beside it"
    )
    best_of: Annotated[object, NotServed("give n", (1,))] = None
    suffix: Annotated[object, NotServed("the model continues texts; give what stands before", ("",))] = None
    add_special_tokens: Annotated[object, NotServed("give token ids for a prompt without them", (True,))] = None

    @model_validator(mode="after")
    def _check(self) -> "CompletionRequest":
        self.check_stream()
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
