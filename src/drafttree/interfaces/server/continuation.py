"""One text of a completion, as its pieces make it: for a stream, and as a whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from drafttree.engine.logprobs import Logprobs
from drafttree.interfaces.server.protocol.completion_reply import CompletionChoice, CompletionLogprobs
from drafttree.interfaces.server.text_pieces import Piece, ScoredToken, scored_tokens
from drafttree.interfaces.server.token_names import TokenNames


@dataclass(frozen=True)
class EchoedPrompt:
    """A prompt that is a part of the reply.

    Attributes:
        text: of it.
        tokens: their ids.
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
        names: of the tokens, None where no log-probabilities are wanted.
        echo: the prompt that the text begins with, None for none.
    """

    def __init__(self, index: int, names: TokenNames | None, echo: EchoedPrompt | None = None) -> None:
        self._index, self._names, self._echo = index, names, echo
        self._text = ""
        self._tokens: list[ScoredToken] = []
        self._offset = 0
        self._offsets: list[int] = []
        self._finish_reason: Literal["stop", "length"] | None = None

    def begin(self) -> list[CompletionChoice]:
        """Nothing comes before the first piece."""
        return []

    def add(self, piece: Piece) -> list[CompletionChoice]:
        """What a piece adds; the first one has the prompt if it is echoed."""
        text, tokens = piece.text, piece.tokens
        if self._echo:
            text, tokens, self._echo = self._echo.text + text, [*self._echo.scored(piece.prompt), *tokens], None
        offsets = self._offsets_of(tokens)
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

    def _offsets_of(self, tokens: Sequence[ScoredToken]) -> list[int]:
        """Where tokens begin, in characters; bytes that continue a character begin where it does."""
        if self._names is None:
            return []
        found = []
        for scored in tokens:
            piece = self._names.bytes(scored.token)
            found.append(self._offset - (bool(piece) and _continues(piece[0])))
            self._offset += sum(not _continues(byte) for byte in piece)
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
