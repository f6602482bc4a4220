"""The fields of all requests for texts on sampling and on the end of a text, and their conversion to engine options."""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from drafttree.constraints.options import MAX_FACTOR
from drafttree.engine.decoder import Decoder
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.fields import (
    NAMES,
    ListOf,
    RequestModel,
    StructuredOutputs,
    fields_of,
    mistake,
    or_text,
)
from drafttree.interfaces.server.unsupported_fields import FIELDS, ITEM_BY_ITEM, Clamped

DEFAULT_LIMIT = 2048
"""The limit of a text's tokens if neither the request nor the model's generation config has one."""
SAME_NAMES = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "stop")
MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOPS = 16
INT64 = 2**63
TOKEN_ID = re.compile("[0-9]{1,10}")

StopString = Annotated[str, Field(min_length=1, max_length=1000)]
StopStrings = Annotated[ListOf[StopString], Field(max_length=MAX_STOPS), or_text(lambda text: [text] if text else [])]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[int, Field(ge=0, lt=INT64)]
TokenCount = Annotated[int, Field(ge=1, lt=INT64)]


class StreamOptions(fields_of("completions.stream_options")):
    """Options of the stream.

    Attributes:
        include_usage: whether a last chunk has the usage, without choices.
        continuous_usage_stats: an option of vLLM: whether every chunk has the usage so far.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(fields_of("server")):
    """Fields of all requests for texts."""

    model: str | None = Field(None, description="name of the served model, which is the default")
    stream: bool | None = Field(None, description="send the text while it is generated, as server-sent events")
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = Field(
        None, description="the same prompt, options and seed give the same text, whatever else the server does"
    )
    cache_salt: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="vLLM: prefixes are shared among requests of the same salt (and API key) alone"
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        None, description="0 is greedy; default: the model's own, or else 1"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="nucleus sampling")
    stop: StopStrings | None = Field(
        None,
        description=f"up to {MAX_STOPS} strings that end the text and are not part of it; they do not apply to "
        "reasoning; an empty string means none",
    )
    presence_penalty: Penalty | None = Field(None, description="penalty on tokens that the text already contains")
    frequency_penalty: Penalty | None = Field(
        None, description="penalty on tokens that the text already contains, for each occurrence"
    )
    logit_bias: Annotated[dict[str, Bias], ITEM_BY_ITEM] | None = Field(
        None, description="token ids, as strings, each with the value to add to its logit"
    )
    top_k: Annotated[int, Field(ge=-1, lt=INT64)] | None = Field(
        None, description="vLLM: sample from the k most likely tokens; -1 for all"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="vLLM: minimum probability of a token, relative to that of the most likely one"
    )
    repetition_penalty: Annotated[float, Field(ge=1 / MAX_FACTOR, le=MAX_FACTOR)] | None = Field(
        None, description="vLLM: divides the logits of tokens that occur in the prompt or the text"
    )
    min_tokens: Annotated[int, Field(ge=0, lt=INT64)] | None = Field(
        None, description="vLLM: minimum number of tokens before an EOS or stop token"
    )
    stop_token_ids: ListOf[TokenId] | None = Field(
        None, description="vLLM: tokens that end the text, in addition to EOS"
    )
    ignore_eos: bool | None = Field(None, description="vLLM: continue after EOS tokens")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="vLLM: exactly one of json, regex, choice, grammar (GBNF) and json_object"
    )
    skip_special_tokens: Literal[True] | None = Field(
        None, description="vLLM: only true; texts contain no special tokens"
    )

    @field_validator("logit_bias")
    @classmethod
    def _check_token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        wrong_token = next((token for token in bias or () if not TOKEN_ID.fullmatch(token)), None)
        if wrong_token is not None:
            raise mistake("no_token_id", f"{wrong_token[:40]!r} is not a token id")
        return bias

    _api: str = PrivateAttr("chat")

    @property
    def told_tools(self) -> Sequence[RequestModel]:
        """The tools in the prompt."""
        return ()

    def called(self, field: str) -> str:
        """The name that the called API uses for a field of a chat."""
        return NAMES.get(field, {}).get(self._api, field)

    def clamps(self, field: str) -> bool:
        """Whether a limit above what is available is lowered instead of refused, in the called API."""
        return isinstance(FIELDS[self._api].get(self.called(field)), Clamped)


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
            raise mistake("no_stream", "this needs stream to be true", "stream_options")
        return self

    @property
    def choices(self) -> int:
        """The number of texts per prompt."""
        return self.n or 1


def engine_options(
    request: SamplingFields, decoder: Decoder, prompt_length: int, request_limit: int | None
) -> dict[str, Any]:
    """The engine's options for the texts of a prompt, except their seeds and their grammar.

    Args:
        request: the client's request.
        decoder: the decoder of the served model.
        prompt_length: the number of tokens of the prompt.
        request_limit: the request's limit of new tokens; None if it has none.

    Raises:
        ServerError: a token id is outside the vocabulary, or prompt and text do not fit into the model's context.
    """
    limit = _limit(request, request_limit, prompt_length, decoder)
    options: dict[str, Any] = {name: value for name in SAME_NAMES if (value := getattr(request, name)) is not None}
    default_temperature = decoder.defaults.get("temperature", 1.0)
    options |= {
        "max_new_tokens": limit,
        "temperature": default_temperature if request.temperature is None else request.temperature,
    }
    if request.top_k is not None:
        options["top_k"] = max(request.top_k, 0)
    if request.min_tokens:
        if request.min_tokens > limit:
            message = f"min_tokens is {request.min_tokens}, but the text may have {limit} tokens"
            raise ServerError(400, message, param="min_tokens")
        options["min_new_tokens"] = request.min_tokens
    if request.logit_bias:
        bias = {int(token): offset for token, offset in request.logit_bias.items()}
        check_tokens("logit_bias", bias, decoder)
        options["sequence_bias"] = [[[token], float(offset)] for token, offset in bias.items()]
    if request.stop_token_ids:
        check_tokens("stop_token_ids", request.stop_token_ids, decoder)
        options["eos_token_id"] = [*(() if request.ignore_eos else decoder.eos), *request.stop_token_ids]
        options["ignore_eos"] = False
    return options


def seeds(request: SeveralTexts) -> list[int | None]:
    """The seeds of a prompt's texts: the request's seed and the numbers after it; None if the request has none."""
    if request.seed is None:
        return [None] * request.choices
    return [(request.seed + choice + INT64) % (2 * INT64) - INT64 for choice in range(request.choices)]


def _limit(request: SamplingFields, request_limit: int | None, prompt_length: int, decoder: Decoder) -> int:
    """The most new tokens of a text.

    By default, this is the limit of the model's generation config, or `DEFAULT_LIMIT`, but at most the context's room.

    Raises:
        ServerError: prompt and text do not fit into the model's context.
    """
    context = decoder.target.context
    room = None if context is None else context - prompt_length
    if room is not None and room < max(request_limit or 1, 1) and not (room > 0 and request.clamps("max_tokens")):
        excess = f"and {request_limit} tokens of text exceed" if room > 0 else "leaves no room for a text in"
        advice = f" or ask for at most {room} tokens" if room > 0 else ""
        tools_note = ", tools included," if request.told_tools else ""
        message = (
            f"the prompt of {prompt_length} tokens{tools_note} {excess} the model's context of {context}; "
            f"shorten it{advice}"
        )
        newer = getattr(request, "max_completion_tokens", None) is not None
        limit_field = "max_completion_tokens" if newer else "max_tokens"
        param = request.called(limit_field if room > 0 else "messages")
        raise ServerError(400, message, param=param, code="context_length_exceeded")
    text_limit = request_limit if request_limit is not None else decoder.defaults.get("max_new_tokens") or DEFAULT_LIMIT
    return text_limit if room is None else min(text_limit, room)


def check_tokens(field: str, tokens: Iterable[int], decoder: Decoder) -> None:
    """Refuse token ids outside the vocabulary.

    Raises:
        ServerError: a token id is outside the vocabulary; the message names the field and the first such id.
    """
    vocab = decoder.target.vocab_size
    if wrong_token := next((token for token in tokens if token >= vocab), None):
        message = f"{field}: token id {wrong_token} is outside the vocabulary of {vocab}"
        raise ServerError(400, message, param=field)
