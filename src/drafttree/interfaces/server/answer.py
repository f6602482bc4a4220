"""A text as it grows, and the answer of a chat that it is: its parts in their order, for the API that writes them."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from drafttree.constraints.grammar import token_bytes
from drafttree.engine.batching import Handle
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Chunk
from drafttree.interfaces.server.dialect.reader import AnswerReader, Part, Said
from drafttree.interfaces.server.errors import SHUTTING_DOWN, ServerError, shutting_down

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
    """The tokens of a vocabulary by name: their text, or their bytes where these are a part of a character."""

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


class Text:
    """A text as the engine writes it, and which of its tokens an API has told.

    A token is told with the last of its characters, so what may still turn out to be a stop string shows in no
    log-probability either. A stop string's own tokens and EOS are no part of the text.

    Args:
        handle: the text in the engine.
        names: the tokens by name, None where no log-probabilities are wanted.

    Attributes:
        names: as given.
        generated: its tokens so far.
        accepted: those of them that were drafted.
        origins: per character, the place in the text of the token that completed it.
        told: the number of tokens that were told.
    """

    def __init__(self, handle: Handle, names: TokenNames | None) -> None:
        self.handle, self.names = handle, names
        self.generated = self.accepted = self.told = 0
        self.origins, self._scored = list[int](), deque[ScoredToken]()
        self._rounds = self._drafted = 0

    def add(self, chunk: Chunk) -> None:
        """Take what a round has added.

        Raises:
            ServerError: the text ended before its end.
        """
        if chunk.finish_reason == SHUTTING_DOWN:
            raise shutting_down()
        if chunk.finish_reason not in (None, "stop", "length"):
            raise ServerError(503, f"the text was {chunk.finish_reason} before its end", code=chunk.finish_reason)
        self.generated += len(chunk.tokens)
        self.accepted += sum(chunk.drafted)
        self.origins += chunk.origins
        if chunk.logprobs:
            self._scored += scored_tokens(chunk.tokens, chunk.logprobs, chunk.top_logprobs)

    def tokens_before(self, character: int) -> int:
        """The number of tokens that the text before a character is made of."""
        return self.origins[character - 1] + 1 if character else 0

    def known_tokens(self, finish_reason: str | None) -> int:
        """The number of tokens that its text so far is made of, by why it has ended."""
        return self.generated if finish_reason == "length" else self.tokens_before(len(self.origins))

    def tell(self, tokens: int) -> list[ScoredToken]:
        """Those of the first tokens that were not told, with their log-probabilities if these are wanted."""
        found = [self._scored.popleft() for _ in range(min(tokens - self.told, len(self._scored)))]
        self.told += len(found)
        return found

    @property
    def drafted(self) -> int:
        """The drafted tokens of all rounds so far; counting them again takes no longer for a longer text."""
        new = self.handle.metrics.rounds[self._rounds :]
        self._rounds += len(new)
        self._drafted += sum(each.nodes - 1 for each in new)
        return self._drafted


@dataclass(frozen=True)
class Ended:
    """The end of an answer.

    Attributes:
        reason: why it ends: "stop", also where a call was cut short, "length" or "tool_calls".
        stopped_by: the stop string that ended it, None where something else did.
    """

    reason: str
    stopped_by: str | None


class Answer:
    """Reads an answer.

    Args:
        text: as the engine writes it.
        reader: tells thinking and calls of tools from what is said.

    Attributes:
        scored: whether log-probabilities are wanted.
    """

    def __init__(self, text: Text, reader: AnswerReader) -> None:
        self._text, self._reader, self.scored = text, reader, text.names is not None

    def read(self, chunk: Chunk) -> Iterator[tuple[Part | Ended | None, list[Json]]]:
        """The parts that a chunk of the text adds, each with the log-probabilities of tokens that were not told before.

        What is said has those of its own tokens. None stands for tokens beside it: of marks, thinking and calls.
        """
        text, reason = self._text, chunk.finish_reason
        for part in self._reader.read(chunk.text, final=reason is not None):
            scores: list[Json] = []
            if isinstance(part, Said):
                begin, end = part.begin, part.begin + len(part.text)
                if before := self._tell(min(text.tokens_before(begin), text.origins[begin])):
                    yield None, before
                scores = self._tell(text.tokens_before(end))
            yield part, scores
        if rest := self._tell(text.known_tokens(reason) if reason else text.tokens_before(self._reader.known)):
            yield None, rest
        if reason:
            called = reason == "stop" and self._reader.calls and not self._reader.in_call
            yield Ended("tool_calls" if called else reason, chunk.stopped_by), []

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that are thinking, the marks around it included."""
        text = self._text
        return sum(
            (text.generated if end is None else text.tokens_before(end)) - text.tokens_before(begin)
            for begin, end in self._reader.thoughts
        )

    def _tell(self, tokens: int) -> list[Json]:
        """The log-probabilities of those of the first tokens that no part has had."""
        names = self._text.names
        return [names.score(scored) for scored in self._text.tell(tokens)] if names else []
