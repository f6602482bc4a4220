"""The fields that chat and completion requests share: how tokens are chosen, where a text ends, how it is sent."""

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from drafttree.interfaces.server.protocol.request_model import NotServed, RequestModel, mistake
from drafttree.interfaces.server.protocol.structured_outputs import StructuredOutputs

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
        lambda stop: [stop] if isinstance(stop, str) else stop, json_schema_input_type=str | list[StopString]
    ),
]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Bias = Annotated[float, Field(ge=-100, le=100)]
TokenId = Annotated[int, Field(ge=0)]


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
    """Fields of both kinds of requests."""

    model: str | None = Field(None, description="the name of the served model, which it is by default")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = Field(
        None, description="texts; with a seed the i-th has seed + i, counted from 0"
    )
    stream: bool | None = Field(None, description="send the text as it is written, as server-sent events")
    stream_options: StreamOptions | None = Field(
        None, description="include_usage, and vLLM's continuous_usage_stats; with stream only"
    )
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = Field(
        None, description="prompt, options and seed decide a text, whatever else the server does"
    )
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        None, description="0 is greedy; by default the model's own, else 1"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] | None = Field(None, description="nucleus sampling")
    stop: StopStrings | None = Field(None, description=f"up to {MAX_STOPS} strings before which the text ends")
    presence_penalty: Penalty | None = Field(None, description="against tokens that the text has")
    frequency_penalty: Penalty | None = Field(None, description="the same, for every time it has them")
    logit_bias: dict[str, Bias] | None = Field(None, description="token ids, as strings, and what is added to each")
    user: str | None = Field(None, description="has no effect on a reply")
    top_k: Annotated[int, Field(ge=-1)] | None = Field(None, description="vLLM's: the k likeliest tokens; -1 for all")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="vLLM's: tokens of at least this share of the likeliest one's probability"
    )
    repetition_penalty: Annotated[float, Field(gt=0)] | None = Field(
        None, description="vLLM's: divides the logits of tokens in prompt and text"
    )
    min_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="vLLM's: tokens before an EOS or stop token is possible"
    )
    stop_token_ids: list[TokenId] | None = Field(None, description="vLLM's: tokens that end the text, besides EOS")
    ignore_eos: bool | None = Field(None, description="vLLM's: go on past EOS tokens")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="vLLM's: one of json, regex, choice, grammar (GBNF) and json_object"
    )
    skip_special_tokens: Literal[True] | None = Field(None, description="vLLM's: special tokens are no text; only true")
    use_beam_search: Annotated[object, NotServed("a draft tree belongs to one text")] = None
    length_penalty: Annotated[object, NotServed("it belongs to beam search", (1,))] = None
    bad_words: Annotated[object, NotServed("give logit_bias")] = None
    allowed_token_ids: Annotated[object, NotServed("give structured_outputs")] = None
    include_stop_str_in_output: Annotated[object, NotServed("texts end before a stop string")] = None
    truncate_prompt_tokens: Annotated[object, NotServed("shorten the prompt")] = None
    prompt_logprobs: Annotated[object, NotServed("give echo and logprobs to /v1/completions")] = None
    return_token_ids: Annotated[object, NotServed("leave it out")] = None
    priority: Annotated[object, NotServed("requests are served in the order they come", (0,))] = None

    @field_validator("logit_bias")
    @classmethod
    def _check_token_ids(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        wrong = next((token for token in bias or () if not TOKEN_ID.fullmatch(token)), None)
        if wrong is not None:
            raise mistake("no_token_id", f"{wrong[:40]!r} is no token id")
        return bias

    def check_stream(self) -> None:
        """Refuse options of a stream without one.

        Raises:
            PydanticCustomError: names them.
        """
        if self.stream_options is not None and not self.stream:
            raise mistake("no_stream", "stream_options needs stream to be true")

    @property
    def choices(self) -> int:
        """Texts for each prompt."""
        return self.n or 1
