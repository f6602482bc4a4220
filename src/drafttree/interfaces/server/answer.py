"""A text in pieces, and the answer of a chat that they make: its parts in their order, for the API that writes them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from drafttree.constraints.grammar import token_bytes
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Logprobs
from drafttree.interfaces.server.dialect.reader import AnswerReader, Part, Said

Json = dict[str, Any]
MIN_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON does not know; vLLM's number."""


class ScoredToken(NamedTuple):
    """A token, its log-probability, None where nothing stands before it, and the likeliest ones at its place."""

    token: int
    logprob: float | None
    top: dict[int, float]


def scored_tokens(
    tokens: Sequence[int], logprobs: Sequence[float], top: Sequence[dict[int, float]]
) -> list[ScoredToken]:
    """Tokens with what is known of them, in numbers that JSON can say; `top` may be empty."""
    return [
        ScoredToken(
            token, max(logprob, MIN_LOGPROB), {each: max(value, MIN_LOGPROB) for each, value in likeliest.items()}
        )
        for token, logprob, likeliest in zip(tokens, logprobs, top or [{}] * len(tokens), strict=True)
    ]


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

    def score(self, scored: ScoredToken) -> Json:
        """A token with its log-probability and the likeliest ones at its place, as chats have them."""
        named = [
            {"token": self.name(token), "bytes": [*self.bytes(token)], "logprob": logprob}
            for token, logprob in [(scored.token, scored.logprob), *scored.top.items()]
        ]
        return named[0] | {"top_logprobs": named[1:]}


@dataclass(frozen=True)
class Piece:
    """What a round adds to a text.

    Attributes:
        text: new text, which no later token can change.
        tokens: the tokens it is made of, where their log-probabilities are wanted.
        finish_reason: why the text ends; None in every piece but the last.
        generated: the number of tokens of the round.
        prompt: log-probabilities of the prompt's tokens after the first, in the first piece if they are wanted.
        stopped_by: the stop string that ended the text, in the last piece; None where something else did.
        origins: per character, the place in the text of the token that completed it.
    """

    text: str
    tokens: list[ScoredToken] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None
    generated: int = 0
    prompt: Logprobs | None = None
    stopped_by: str | None = None
    origins: Sequence[int] = ()


@dataclass(frozen=True)
class Ended:
    """The end of an answer.

    Attributes:
        reason: why it ends, in the words of a chat; "stop" where a call was cut short.
        stopped_by: the stop string that ended it, None where something else did.
    """

    reason: Literal["stop", "length", "tool_calls"]
    stopped_by: str | None


class Answer:
    """Reads the pieces of an answer.

    Args:
        reader: tells thinking and calls of tools from what is said.
        names: the tokens by name, None where no log-probabilities are wanted.
    """

    def __init__(self, reader: AnswerReader, names: TokenNames | None) -> None:
        self._reader, self._names = reader, names
        self._generated, self._origins = 0, list[int]()
        self._scores, self._told = list[Json](), 0

    @property
    def scored(self) -> bool:
        """Whether log-probabilities are wanted."""
        return self._names is not None

    def read(self, piece: Piece) -> Iterator[tuple[Part | Ended | None, list[Json]]]:
        """The parts that a piece of text adds, each with the log-probabilities of tokens that were not told before.

        What is said has those of its own tokens. None stands for tokens beside it: of marks, thinking and calls.
        """
        final = piece.finish_reason is not None
        self._generated += piece.generated
        self._origins += piece.origins
        if self._names:
            self._scores += map(self._names.score, piece.tokens)
        for part in self._reader.read(piece.text, final=final):
            scores: list[Json] = []
            if isinstance(part, Said):
                begin, end = part.begin, part.begin + len(part.text)
                if before := self._tell(min(self._tokens_before(begin), self._origins[begin])):
                    yield None, before
                scores = self._tell(self._tokens_before(end))
            yield part, scores
        if rest := self._tell(self._told + len(self._scores) if final else self._tokens_before(self._reader.known)):
            yield None, rest
        if piece.finish_reason:
            called = piece.finish_reason == "stop" and self._reader.calls and not self._reader.in_call
            yield Ended("tool_calls" if called else piece.finish_reason, piece.stopped_by), []

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that are thinking, the marks around it included."""
        return sum(
            (self._generated if end is None else self._tokens_before(end)) - self._tokens_before(begin)
            for begin, end in self._reader.thoughts
        )

    def _tokens_before(self, character: int) -> int:
        return self._origins[character - 1] + 1 if character else 0

    def _tell(self, tokens: int) -> list[Json]:
        """The log-probabilities of the tokens before a place that no part has had."""
        count = max(tokens - self._told, 0)
        found, self._scores = self._scores[:count], self._scores[count:]
        self._told += len(found)
        return found
