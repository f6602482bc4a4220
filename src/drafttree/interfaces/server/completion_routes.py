"""/v1/completions: texts that go on from a prompt."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Response

from drafttree.engine.generation import Logprobs
from drafttree.engine.prompt import encode
from drafttree.interfaces.server.choices import Choices
from drafttree.interfaces.server.engine_options import engine_options, seeds
from drafttree.interfaces.server.protocol.replies import Completion, CompletionChoice, CompletionLogprobs
from drafttree.interfaces.server.protocol.requests import CompletionRequest
from drafttree.interfaces.server.reply import STREAMED, Reply, reply_head
from drafttree.interfaces.server.reply_grammar import outputs_grammar
from drafttree.interfaces.server.serving import Serving, ServingContext
from drafttree.interfaces.server.text_pieces import Piece, ScoredToken, TokenNames, scored_tokens

router = APIRouter(prefix="/v1/completions", tags=["completions"])


@router.post("", response_model=Completion, responses=STREAMED)
async def complete(request: CompletionRequest, serving: Serving) -> Response:
    """Continue texts, at once or as a stream of chunks."""
    serving.check_model(request.model)
    serving.admission.check()
    prompts, options = await asyncio.to_thread(_prepare, request, serving)
    names = await asyncio.to_thread(TokenNames, serving.decoder) if request.wanted_logprobs else None
    choices = await Choices.submit(serving, prompts, options, seeds(request), wanted=request.limit > 0)
    echoes = [_echo(request, place, tokens, serving) for place, tokens in enumerate(prompts) for _ in seeds(request)]
    make = partial(Completion, object="text_completion", **reply_head("cmpl", request, serving))
    texts = [Continuation(index, names, echo) for index, echo in enumerate(echoes)]
    return await Reply(choices, texts, make, make).response(request)


def _prepare(request: CompletionRequest, serving: ServingContext) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """The token ids of the prompts, and the options of their texts."""
    decoder, logprobs = serving.decoder, request.wanted_logprobs
    vocab, context = decoder.target.vocab_size, decoder.target.context
    prompts = [encode(prompt, decoder.tokenizer, vocab, context) for prompt in request.prompt]
    wanted = {"logprobs": logprobs, "prompt_logprobs": logprobs if request.echo else None}
    limit = max(request.limit, 1)
    grammar = request.structured_outputs and outputs_grammar(request.structured_outputs)
    return prompts, [engine_options(request, decoder, len(tokens), limit, grammar) | wanted for tokens in prompts]


def _echo(request: CompletionRequest, place: int, tokens: list[int], serving: ServingContext) -> "EchoedPrompt | None":
    """The prompt at a place, if it is to be repeated."""
    if not request.echo:
        return None
    given, tokenizer = request.prompt[place], serving.decoder.tokenizer
    if not isinstance(given, str):
        given = tokenizer.decode(tokens, skip_special_tokens=True) if tokenizer else ""
    return EchoedPrompt(given, tokens)


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt that is a part of the reply.

    Attributes:
        text: the prompt as text.
        tokens: its token ids.
    """

    text: str
    tokens: list[int]

    def scored(self, logprobs: Logprobs | None) -> list[ScoredToken]:
        """Its tokens with what is known of them; nothing stands before the first."""
        if logprobs is None:
            return []
        return [ScoredToken(self.tokens[0], None, {}), *scored_tokens(self.tokens[1:], logprobs.tokens, logprobs.top)]


class Continuation:
    """A text while it is written.

    Args:
        index: its place among the texts of a request.
        names: the tokens by name, None where no log-probabilities are wanted.
        echo: the prompt that the text begins with, None for none.
    """

    def __init__(self, index: int, names: TokenNames | None, echo: EchoedPrompt | None = None) -> None:
        self._index, self._names, self._echo = index, names, echo
        self._text = ""
        self._tokens: list[ScoredToken] = []
        self._begin = len(echo.text) if echo else 0
        self._origins: list[int] = []
        self._given = 0
        self._offsets: list[int] = []
        self._finish_reason: Literal["stop", "length"] | None = None

    def begin(self) -> list[CompletionChoice]:
        """Nothing comes before the first piece."""
        return []

    def add(self, piece: Piece) -> list[CompletionChoice]:
        """What a piece adds; the first one has the prompt if it is echoed."""
        text, tokens, offsets = piece.text, piece.tokens, self._offsets_of(piece)
        if self._echo:
            prompt = self._echo.scored(piece.prompt)
            text, tokens, self._echo = self._echo.text + text, [*prompt, *tokens], None
            offsets = [*self._prompt_offsets(prompt), *offsets]
        self._text += text
        self._tokens += tokens
        self._offsets += offsets
        self._finish_reason = piece.finish_reason
        return [self._choice(text, tokens, offsets)] if text or tokens or piece.finish_reason else []

    @property
    def whole(self) -> CompletionChoice:
        """The whole text."""
        return self._choice(self._text, self._tokens, self._offsets)

    def _choice(self, text: str, tokens: Sequence[ScoredToken], offsets: list[int]) -> CompletionChoice:
        logprobs = None if self._names is None else _logprobs(tokens, offsets, self._names)
        return CompletionChoice(index=self._index, text=text, logprobs=logprobs, finish_reason=self._finish_reason)

    def _offsets_of(self, piece: Piece) -> list[int]:
        """Where tokens begin, in characters; bytes that continue a character begin where it does."""
        self._origins += piece.origins
        places = range(self._given, self._given + len(piece.tokens))
        self._given = places.stop
        return [self._begin + bisect_left(self._origins, place) for place in places]

    def _prompt_offsets(self, tokens: Sequence[ScoredToken]) -> list[int]:
        """The same for the tokens of the prompt, whose text is the client's."""
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


def _logprobs(tokens: Sequence[ScoredToken], offsets: list[int], names: TokenNames) -> CompletionLogprobs:
    return CompletionLogprobs(
        tokens=[names.name(scored.token) for scored in tokens],
        token_logprobs=[scored.logprob for scored in tokens],
        top_logprobs=[_top(scored, names) for scored in tokens],
        text_offset=offsets,
    )


def _top(scored: ScoredToken, names: TokenNames) -> dict[str, float] | None:
    """The likeliest tokens and the chosen one by name, None where there was nothing to choose."""
    if scored.logprob is None:
        return None
    likeliest = {names.name(token): logprob for token, logprob in scored.top.items()}
    return likeliest | {names.name(scored.token): scored.logprob}
