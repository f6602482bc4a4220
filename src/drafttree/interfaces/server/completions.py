"""/v1/completions: texts that go on from a prompt."""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Self

from fastapi import APIRouter, Response
from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from drafttree.engine.generation import Chunk
from drafttree.engine.prompt import encode
from drafttree.interfaces.server.answer import Json, ScoredToken, Text, TokenNames, scored_tokens
from drafttree.interfaces.server.body_reading import Body, BodyRoute
from drafttree.interfaces.server.errors import blaming
from drafttree.interfaces.server.fields import fields_of, mistake
from drafttree.interfaces.server.grammar import outputs_grammar
from drafttree.interfaces.server.reply import STREAMED, Completions, Described, reply
from drafttree.interfaces.server.sampling import INT64, MAX_LOGPROBS, SeveralTexts, TokenId, engine_options, seeds
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.texts import Texts

router = APIRouter(route_class=BodyRoute, prefix="/v1/completions", tags=["completions"])


MAX_PROMPTS = 256
DEFAULT_LIMIT = 16

PromptText = Annotated[str, Field(min_length=1)]
TokenIds = Annotated[list[TokenId], Field(min_length=1)]
Echo = tuple[str, list[int]]
"""A prompt as text and as tokens."""


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
    list[PromptText] | list[TokenIds],
    Field(max_length=MAX_PROMPTS),
    BeforeValidator(_as_list, json_schema_input_type=PromptText | list[PromptText] | TokenIds | list[TokenIds]),
]


class CompletionRequest(SeveralTexts, fields_of("completions")):
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
    _api: str = PrivateAttr("completions")

    @model_validator(mode="after")
    def _check_tokens(self) -> Self:
        if self.limit == 0 and not self.echo:
            raise mistake("no_tokens", "this is 0, so there is nothing to send without echo", "max_tokens")
        return self

    @property
    def limit(self) -> int:
        """Tokens of a text at most."""
        return DEFAULT_LIMIT if self.max_tokens is None else self.max_tokens

    @property
    def wanted_logprobs(self) -> bool | int | None:
        """The engine's option."""
        return (self.logprobs or True) if self.logprobs is not None else None


class Completion(Described):
    """`openai.types.Completion`, with the fields below.

    With `echo` the first token has neither a log-probability nor likeliest tokens: nothing stands before it.
    """


@router.post("", response_model=Completion, responses=STREAMED)
async def complete(request: Body[CompletionRequest], serving: Serving) -> Response:
    """Continue texts, at once or as a stream of chunks."""
    serving.check_model(request.model)
    serving.admission.check()
    prompts, options, echoes = await asyncio.to_thread(_prepare, request, serving)
    texts = await Texts.submit(serving, prompts, options, seeds(request), request.cache_salt, wanted=request.limit > 0)
    choices = [
        Continuation(index, text, echoes[index // request.choices], not request.stream)
        for index, text in enumerate(texts.all)
    ]
    return await reply(request, serving, texts, Completions(request, serving, texts, choices, chat=False))


def _prepare(
    request: CompletionRequest, serving: ServingContext
) -> tuple[list[list[int]], list[Json], list[Echo | None]]:
    """The token ids of the prompts, the options of their texts, and what these begin with."""
    decoder, logprobs = serving.decoder, request.wanted_logprobs
    tokenizer, vocab, context = decoder.tokenizer, decoder.target.vocab_size, decoder.target.context
    with blaming("prompt"):
        prompts = [encode(prompt, tokenizer, vocab, context) for prompt in request.prompt]
    limit = max(request.limit, 1)
    grammar = request.structured_outputs and outputs_grammar(request.structured_outputs)
    wanted = {"logprobs": logprobs, "prompt_logprobs": logprobs if request.echo else None, "grammar": grammar}
    echoes: list[Echo | None] = [None] * len(prompts)
    if request.echo:
        read = zip(request.prompt, prompts, strict=True)
        echoes = [(given if isinstance(given, str) else _decoded(tokens, tokenizer), tokens) for given, tokens in read]
    return prompts, [engine_options(request, decoder, len(tokens), limit) | wanted for tokens in prompts], echoes


def _decoded(tokens: list[int], tokenizer: Any) -> str:
    return tokenizer.decode(tokens, skip_special_tokens=True) if tokenizer else ""


class Continuation:
    """Writes one text.

    Args:
        index: its place among the texts of a request.
        text: the text.
        echo: the prompt that the text begins with; None for none.
        keeps_scores: as for `ChatChoice`.
    """

    def __init__(self, index: int, text: Text, echo: Echo | None, keeps_scores: bool) -> None:
        self._index, self._text, self._names, self._echo = index, text, text.names, echo
        self._begin, self._written, self._reason = len(echo[0]) if echo else 0, "", None
        self._logprobs = self._scored([], []) if text.names and keeps_scores else None

    def begin(self) -> Iterator[Json]:
        """Nothing comes before the first chunk."""
        yield from ()

    def add(self, chunk: Chunk) -> Iterator[Json]:
        """What a chunk adds; the first one has the prompt if it is echoed."""
        text, first = chunk.text, self._text.told
        tokens = self._text.tell(self._text.known_tokens(chunk.finish_reason))
        # bytes that continue a character begin where it does
        offsets = [self._begin + bisect_left(self._text.origins, first + place) for place in range(len(tokens))]
        if self._echo:
            (shown, ids), self._echo = self._echo, None
            text = shown + text
            if chunk.prompt_logprobs is not None:  # nothing stands before the first token
                known = scored_tokens(ids[1:], chunk.prompt_logprobs.tokens, chunk.prompt_logprobs.top)
                prompt = [ScoredToken(ids[0], None, {}), *known]
                tokens, offsets = [*prompt, *tokens], [*self._prompt_offsets(prompt), *offsets]
        self._written, self._reason = self._written + text, chunk.finish_reason
        logprobs = self._names and self._scored(tokens, offsets)
        if self._logprobs and logprobs:
            for name, values in logprobs.items():
                self._logprobs[name] += values
        if text or tokens or chunk.finish_reason:
            yield self._choice(text, logprobs)

    @property
    def whole(self) -> Json:
        """The whole text."""
        return self._choice(self._written, self._logprobs)

    def _choice(self, text: str, logprobs: Json | None) -> Json:
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": self._reason}

    def _scored(self, tokens: Sequence[ScoredToken], offsets: list[int]) -> Json:
        """Tokens with what is known of them, and where each begins in the text."""
        assert self._names
        return {
            "tokens": [self._names.name(scored.token) for scored in tokens],
            "token_logprobs": [scored.logprob for scored in tokens],
            "top_logprobs": [_top(scored, self._names) for scored in tokens],
            "text_offset": offsets,
        }

    def _prompt_offsets(self, tokens: Sequence[ScoredToken]) -> list[int]:
        """Where the tokens of the prompt begin, whose text is the client's."""
        if self._names is None:
            return []
        found, offset = [], 0
        for scored in tokens:
            piece = self._names.bytes(scored.token)
            found.append(offset - (bool(piece) and _continues(piece[0])))
            offset += sum(not _continues(byte) for byte in piece)
        return found


def _continues(byte: int) -> bool:
    """Whether a byte of UTF-8 continues a character."""
    return byte & 0xC0 == 0x80


def _top(scored: ScoredToken, names: TokenNames) -> dict[str, float] | None:
    """The likeliest tokens and the chosen one by name, None where there was nothing to choose."""
    if scored.logprob is None:
        return None
    likeliest = {names.name(token): logprob for token, logprob in scored.top.items()}
    return likeliest | {names.name(scored.token): scored.logprob}
