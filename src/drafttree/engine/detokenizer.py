"""Tokens into text, one at a time, stopping at stop strings."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from drafttree.core.errors import ConfigError

CONTEXT = 6
UNFINISHED = "\ufffd"


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def decode(self, token_ids: list[int], **kwargs: object) -> str:
        """The text of token ids."""
        ...


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple.

    Raises:
        ConfigError: one is no string or empty.
    """
    strings = (stop,) if isinstance(stop, str) else () if stop is None else stop
    if not isinstance(strings, list | tuple) or not all(isinstance(each, str) and each for each in strings):
        raise ConfigError(f"stop is {stop!r}; stop strings are text, none of them empty")
    return tuple(strings)


def unfinished(text: str, strings: Iterable[str]) -> int:
    """Length of the longest end of a text that one of these strings begins with, without being the whole string."""
    return max((n for each in strings for n in range(1, len(each)) if text.endswith(each[:n])), default=0)


def special_tokens(tokenizer: object) -> dict[int, str]:
    """The special tokens of a tokenizer of transformers, and how they are spelled."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {token: each.content for token, each in added.items() if each.special}


class Detokenizer:
    """Decodes a growing list of tokens without decoding all of it again.

    A token's text can depend on the tokens before it (a leading space) and on those after it (a character of several
    bytes). So a few earlier tokens are decoded along, and an unfinished character waits. Without stop strings tokens
    wait until their text is asked for: a call of the tokenizer between passes of a model takes ten times as long as one
    of several in a row.

    Args:
        tokenizer: None to give no text at all.
        prompt: token ids before the text.
        stop: strings that end the text; none of them becomes part of it.
        spelled: ids of special tokens that are a part of the text; others are none.

    Attributes:
        shown: how much of the text has been read.
        stopped_by: the stop string that ended the text, None as long as none has.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        spelled: Sequence[int] = (),
    ) -> None:
        self._text = ""
        self._origins: list[int] = []
        self._waiting: list[int] = []
        self._pushed = 0
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._unspelled = special_tokens(tokenizer).keys() - set(spelled) if spelled else None
        self._window = list(prompt[-CONTEXT:])
        self._known = self._decode()
        self.shown = 0
        self.stopped_by: str | None = None

    def push(self, token: int) -> bool:
        """Add a token; whether the text now ends with, or ended in, a stop string."""
        if self._tokenizer is None:
            return False
        if not self._stop:
            self._waiting.append(token)
            return False
        return self._add(token)

    def flush(self) -> None:
        """Decode the tokens that wait."""
        for token in self._waiting:
            self._add(token)
        self._waiting.clear()

    @property
    def text(self) -> str:
        """The text so far."""
        self.flush()
        return self._text

    @property
    def origins(self) -> list[int]:
        """Per character of the text, the index of the pushed token that completed it."""
        self.flush()
        return self._origins

    def _add(self, token: int) -> bool:
        """Decode a token; whether a stop string ends the text."""
        self._window.append(token)
        self._pushed += 1
        decoded = self._decode()
        finished = decoded.rstrip(UNFINISHED)
        checked = len(self._text)
        # The prompt may end in an unfinished character, which this text completes, or in U+FFFD itself, which stays.
        known = len(self._known.rstrip(UNFINISHED))
        while known < len(self._known) and finished.startswith(UNFINISHED, known):
            known += 1
        self._text += finished[known:]
        self._origins += [self._pushed - 1] * (len(self._text) - checked)
        self._known = finished if len(finished) > known else self._known
        if finished == decoded:
            self._window = self._window[-CONTEXT:]
            self._known = self._decode()
        return self._cut(checked)

    def read(self, final: bool = False) -> str:
        """The text since the last read that can no longer turn out to be part of a stop string."""
        self.flush()
        end = len(self._text) - (0 if final else unfinished(self._text, self._stop))
        news, self.shown = self._text[self.shown : end], max(end, self.shown)
        return news

    def _cut(self, checked: int) -> bool:
        """Cut the text at the first stop string that ends after `checked`."""
        starts = [self._text.find(stop, max(0, checked - len(stop) + 1)) for stop in self._stop]
        found = [(start, stop) for start, stop in zip(starts, self._stop, strict=True) if start >= 0]
        if found:
            start, self.stopped_by = min(found)
            self._text = self._text[:start]
        return bool(found)

    def _decode(self) -> str:
        if self._tokenizer is None:
            return ""
        if self._unspelled is None:
            return self._tokenizer.decode(self._window, skip_special_tokens=True)
        return self._tokenizer.decode([token for token in self._window if token not in self._unspelled])
