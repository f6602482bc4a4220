"""Converts a text's chunks to Dynamo's form, and holds back tokens that may belong to a stop string.

If a worker dies, another one continues after the last token that was sent, and looks for stop strings only in its own
tokens. The text of a chunk is made here, because the frontend would show the beginning of a stop string.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from drafttree.engine.generation import Chunk

DecodeToken = Callable[[int], str]


class ReleasedChunks:
    """The chunks of one text.

    Args:
        decode: returns the text of a token id.
        holds: whether there are stop strings, so that tokens must be held back.
    """

    def __init__(self, decode: DecodeToken, *, holds: bool) -> None:
        self._decode = decode
        self._holds = holds
        self._tokens: list[int] = []
        self._logprobs: list[float] = []
        self._top: list[dict[int, float]] = []
        self._text = ""
        self._origins = []
        self._released = 0

    def add(self, chunk: Chunk) -> dict[str, Any] | None:
        """Add a chunk of the engine; return the `GenerateChunk` that can be sent now, if any."""
        self._tokens += chunk.tokens
        self._logprobs += chunk.logprobs
        self._top += chunk.top_logprobs
        self._text += chunk.text
        self._origins += chunk.origins
        count = len(self._tokens) if chunk.finish_reason or not self._holds else self._settled()
        if not count and not chunk.finish_reason:
            return None
        released_chunk = self._release(count)
        return released_chunk | {"finish_reason": chunk.finish_reason} if chunk.finish_reason else released_chunk

    def _settled(self) -> int:
        """The number of held tokens whose text is complete: those before the token of the last known character."""
        return self._origins[-1] - self._released if self._origins else 0

    def _release(self, count: int) -> dict[str, Any]:
        self._released += count
        tokens, self._tokens = self._tokens[:count], self._tokens[count:]
        logprobs, self._logprobs = self._logprobs[:count], self._logprobs[count:]
        top, self._top = self._top[:count], self._top[count:]
        end = bisect_left(self._origins, self._released)
        text, self._text, self._origins = self._text[:end], self._text[end:], self._origins[end:]
        released_chunk = {"index": 0, "token_ids": tokens, "tokens": self._spell(tokens), "text": text}
        if logprobs:
            released_chunk["log_probs"] = logprobs
        if top:
            released_chunk["top_logprobs"] = [self._ranked(candidates) for candidates in top]
        return released_chunk

    def _ranked(self, candidates: dict[int, float]) -> list[dict[str, Any]]:
        return [
            {"rank": rank, "token_id": token, "token": self._decode(token), "logprob": value}
            for rank, (token, value) in enumerate(candidates.items(), start=1)
        ]

    def _spell(self, tokens: Sequence[int]) -> list[str]:
        return [self._decode(token) for token in tokens]
