"""The text of one choice as it grows, with its tokens by name and their log-probabilities."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from drafttree.constraints.grammar import token_bytes
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Chunk, Logprobs
from drafttree.interfaces.server.errors import ServerError

MIN_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON does not know; vLLM's number."""


class ScoredToken(NamedTuple):
    """A token, its log-probability, None where nothing stands before it, and the likeliest ones at its place."""

    token: int
    logprob: float | None
    top: dict[int, float]


@dataclass(frozen=True)
class Piece:
    """What a round adds to a text.

    Attributes:
        text: new text, which no later token can change.
        tokens: the tokens it is made of, where their log-probabilities are wanted.
        finish_reason: why the text ends; None in every piece but the last.
        generated: the number of tokens of the round.
        accepted: how many of them were drafted.
        prompt: log-probabilities of the prompt's tokens after the first, in the first piece if they are wanted.
        stopped_by: the stop string that ended the text, in the last piece; None where something else did.
        origins: per character, the place in the text of the token that completed it.
    """

    text: str
    tokens: list[ScoredToken] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    generated: int = 0
    accepted: int = 0
    prompt: Logprobs | None = None
    stopped_by: str | None = None
    origins: Sequence[int] = ()


class TextPieces:
    """Turns the chunks of one text into pieces.

    A token is given out with the piece that has the last of its characters, so what may still turn out to be a stop
    string shows in no log-probability either. A stop string's own tokens and EOS are no part of the text.

    Args:
        wanted: False to leave out the text: an engine writes one token at least.
    """

    def __init__(self, *, wanted: bool = True) -> None:
        self._wanted = wanted
        self._held: deque[ScoredToken] = deque()
        self._given = 0

    def piece(self, chunk: Chunk) -> Piece:
        """The next piece.

        Raises:
            ServerError: the text ended since the server is shutting down.
        """
        if chunk.logprobs:
            self._held += scored_tokens(chunk.tokens, chunk.logprobs, chunk.top_logprobs)
        reason = chunk.finish_reason
        if reason not in (None, "stop", "length"):
            raise ServerError(503, f"the text was {reason} before its end", code=reason)
        if not self._wanted:
            return Piece("", finish_reason=reason and "length", prompt=chunk.prompt_logprobs)
        complete = chunk.origins[-1] + 1 - self._given if chunk.origins else 0
        tokens = [self._held.popleft() for _ in range(min(len(self._held), complete))]
        self._given += len(tokens)
        if reason == "length":
            tokens += self._held
        drafted = sum(chunk.drafted)
        told = (chunk.prompt_logprobs, chunk.stopped_by, chunk.origins)
        return Piece(chunk.text, tokens, reason, len(chunk.tokens), drafted, *told)


def scored_tokens(
    tokens: Sequence[int], logprobs: Sequence[float], top: Sequence[dict[int, float]]
) -> list[ScoredToken]:
    """Tokens with what is known of them; `top` may be empty."""
    pairs = zip(tokens, logprobs, top or [{}] * len(tokens), strict=True)
    return [_scored(*each) for each in pairs]


def _scored(token: int, logprob: float, top: dict[int, float]) -> ScoredToken:
    """A token whose numbers JSON can say."""
    return ScoredToken(token, max(logprob, MIN_LOGPROB), {each: max(value, MIN_LOGPROB) for each, value in top.items()})


class TokenNames:
    """The tokens of a vocabulary by name: their text, or their bytes where these are a part of a character.

    Args:
        decoder: its tokenizer and target have the vocabulary.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._pieces = token_bytes(decoder.tokenizer, decoder.target.vocab_size)

    def bytes(self, token: int) -> bytes:
        """What a token stands for."""
        return self._pieces[token]

    def name(self, token: int) -> str:
        """Its text, or `bytes:\\xe2\\x82` for bytes that are no text, as OpenAI's API writes them."""
        piece = self._pieces[token]
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
