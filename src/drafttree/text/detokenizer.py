"""Turns tokens into text, one at a time, and stops at stop strings."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Protocol, cast

from drafttree.core.errors import ConfigError
from drafttree.text.stop_scope import Span, StopScope, Stretch, unfinished

CONTEXT = 6
UNFINISHED = "\ufffd"
MAX_UNFINISHED = 3
"""The most bytes of an unfinished character; some tokenizers write U+FFFD for each of them."""
BYTE = re.compile("<0x([0-9A-F]{2})>")
CLEANED = 4
"""Characters at the end of a text that `clean_up_tokenization` may still change when more text follows."""


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    def decode(self, token_ids: list[int], **kwargs: object) -> str:
        """Return the text of token ids."""
        ...


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return stop strings as a tuple.

    Raises:
        ConfigError: if one is not a string, or empty.
    """
    if stop is None:
        return ()
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, list | tuple) or not all(isinstance(string, str) and string for string in strings):
        raise ConfigError(f"stop is {stop!r}; stop strings are text, none of them empty")
    return tuple(strings)


def special_tokens(tokenizer: object) -> dict[int, str]:
    """The special tokens of a tokenizer of transformers by their ids, as they are spelled."""
    ids = getattr(tokenizer, "all_special_ids", ())
    texts = getattr(tokenizer, "all_special_tokens", ())
    tokens: dict[int, str] = dict(zip(ids, texts, strict=False))
    for token, added_token in getattr(tokenizer, "added_tokens_decoder", {}).items():
        if added_token.special:
            tokens[token] = added_token.content
    return tokens


class Detokenizer:
    """Decodes a growing list of tokens without decoding all of it again.

    The text of a token can depend on tokens before it (a leading space) and after it (a character of several bytes, a
    space before a full stop). So a few earlier tokens are decoded with it, and text that may still change is not given
    out. At the end all tokens are decoded at once, as the tokenizer would do it. Without stop strings, tokens wait
    until their text is requested: a call of the tokenizer between passes of a model takes ten times as long as one of
    several calls in a row.

    Args:
        tokenizer: the tokenizer; None for no text.
        prompt: token ids before the text, which is decoded as their continuation.
        stop: strings that end the text, and are not part of it.
        spelled: ids of special tokens that are part of the text; other special tokens are left out.
        unstopped: stretches of the text in which stop strings do not apply.

    Attributes:
        shown: the number of characters that were read.
        stopped_by: the stop string that ended the text; None if none has.

    Raises:
        ConfigError: if a stop string contains a special token that is not part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        prompt: Sequence[int],
        stop: Sequence[str] = (),
        spelled: Sequence[int] = (),
        unstopped: Sequence[Stretch] = (),
    ) -> None:
        check_stop(stop, tokenizer, spelled)
        special_texts = special_tokens(tokenizer) if stop or spelled else {}
        self._tokenizer = cast(Any, tokenizer)
        self._stop = tuple(stop)
        self._scope = StopScope(unstopped)
        self._longest_stop = max(map(len, stop), default=0)
        self._searched = 0
        self._cut_from = 0
        marks = "\n".join(f"{stretch.begin}\n{stretch.end}" for stretch in unstopped)
        self._stop_tokens = {token: text for token, text in special_texts.items() if text in stop and text not in marks}
        self._unspelled = special_texts.keys() - set(spelled) if spelled else None
        self._cleans = _cleans_up(tokenizer)
        self._falls_back = _falls_back(tokenizer)
        self._characters: list[str] = []
        self._origins: list[int] = []
        self._settled = 0  # characters that no later token can change
        self._waiting: list[int] = []
        self._pushed: list[int] = []
        self._before = self._context(list(prompt))
        # The window of tokens that is decoded: a context with known text, and tokens whose text begins at `_begin`.
        self._window = [*self._before]
        self._known = self._decode(self._before)
        self._begin = 0
        self._ends: list[int] = []  # per token of the window after the context, the length of the text including it
        self._run: tuple[int, bytearray] | None = None
        self._whole: str | None = None
        self.shown = 0
        self.stopped_by: str | None = None

    def stops(self, token: int) -> bool:
        """Whether the text ends before this token, since its name is a stop string."""
        if token not in self._stop_tokens:
            return False
        _, scope = self._read_ahead(len(self._characters), final=True)
        if scope.inside:
            return False
        self._cut_from = scope.decided if scope.begin is None else scope.begin
        self.stopped_by = self._stop_tokens[token]
        return True

    def push(self, token: int) -> bool:
        """Add a token, and return whether a stop string in the text ends it now."""
        if self._tokenizer is None:
            return False
        if not self._stop:
            self._waiting.append(token)
            return False
        return self._add(token)

    def finish(self) -> None:
        """End the text, and decode all tokens at once."""
        if self._stop:
            spans, _ = self._read_ahead(len(self._characters), final=True)
            self._cut_in(spans)  # what might have become a mark did not
        decoded_text = self._decode(self._before + self._pushed + self._waiting)
        text = decoded_text[_shared_length(self._decode(self._before), decoded_text) :]
        cut_index = text.find(self.stopped_by, self._cut_from) if self.stopped_by else -1
        self._whole = text if cut_index < 0 else text[:cut_index]

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._decoded()) if self._whole is None else self._whole

    @property
    def origins(self) -> list[int]:
        """Per character of the text, the index of the pushed token that completed it."""
        self._decoded()
        return self._origins

    def read(self) -> str:
        """Return the text since the last read, up to what later tokens can change or make a stop string of."""
        characters = self._decoded()
        end = len(characters) if self._whole is not None else self._read_end(characters)
        news = "".join(characters[self.shown : end])
        self.shown = max(end, self.shown)
        return news

    def _read_end(self, characters: Sequence[str]) -> int:
        """The end of the text that later tokens cannot change or make a stop string of."""
        begin = self._scope.begin
        if begin is None or not self._stop:
            return self._settled
        end = min(self._settled, self._scope.decided)
        tail = "".join(characters[max(begin, end - self._longest_stop) : end])
        return end - unfinished(tail, self._stop)

    def _decoded(self) -> list[str]:
        """The characters so far, after decoding the tokens that wait."""
        for token in self._waiting:
            self._add(token)
        self._waiting.clear()
        if self._whole is not None:
            self._write(0, self._whole)
        return self._characters

    def _add(self, token: int) -> bool:
        """Decode a token, and return whether a stop string ends the text."""
        self._pushed.append(token)
        self._window.append(token)
        name = self._tokenizer.convert_ids_to_tokens(token) if self._falls_back else ""
        if byte := BYTE.fullmatch(name or ""):
            self._add_byte(int(byte[1], 16))
        elif not self._run or self._has_text(token, name):
            self._run = None
            self._add_text()
        self._ends.append(len(self._characters))
        if not self._run and len(self._window) >= 2 * CONTEXT:
            self._move_window()
        return self._cut()

    def _add_text(self) -> None:
        """Decode the window, whose last token is new."""
        decoded_text = self._decode(self._window)
        self._write(self._begin, decoded_text[_shared_length(self._known, decoded_text) :])
        unsettled_count = _unfinished_characters(decoded_text) + (CLEANED if self._cleans else 0)
        self._settled = max(self._settled, len(self._characters) - unsettled_count)

    def _add_byte(self, byte: int) -> None:
        """Decode a token that represents a byte.

        If a run of such tokens is not UTF-8, all of them become U+FFFD. So none is settled before another token ends
        the run.
        """
        if self._run is None:
            self._run = len(self._characters), bytearray()
        begin, run = self._run
        run.append(byte)
        try:
            self._write(begin, run.decode())
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                self._write(begin, UNFINISHED * len(run))

    def _has_text(self, token: int, name: str | None) -> bool:
        """Whether a token is part of the text: others are left out, or have no name."""
        return name is not None and self._tokenizer.decode([token]) == self._decode([token])

    def _write(self, begin: int, text: str) -> None:
        """Replace the text from a character on; the beginning that stays the same keeps its origins."""
        shared_length = _shared_length("".join(self._characters[begin:]), text)
        news = text[shared_length:]
        self._characters[begin + shared_length :] = news
        self._origins[begin + shared_length :] = [len(self._pushed) - 1] * len(news)

    def _move_window(self) -> None:
        """Move the beginning of the window forward, unless the window would decode differently."""
        count = bisect_right(self._ends, self._settled)
        if not count:
            return
        split_index = len(self._window) - len(self._ends) + count
        begin = self._ends[count - 1]
        context = self._context(self._window[:split_index])
        window = context + self._window[split_index:]
        context_text = self._decode(context)
        if self._decode(window) == context_text + "".join(self._characters[begin:]):
            self._window = window
            self._known = context_text
            self._begin = begin
            del self._ends[:count]

    def _cut(self) -> bool:
        """Cut the text at the first stop string that ends in text not searched yet, and return whether there is one."""
        if not self._stop:
            return False
        end = len(self._characters) - _unfinished_characters("".join(self._characters[-MAX_UNFINISHED:]))
        spans = self._scope.read(self._characters, self._settled)
        return self._cut_in([*spans, *self._read_ahead(end)[0]])

    def _read_ahead(self, end: int, *, final: bool = False) -> tuple[list[Span], StopScope]:
        """Read up to `end`, even characters that may still change, with a copy of the scope.

        Returns:
            The parts of the text in which stop strings apply, and the copy.
        """
        scope = copy(self._scope)
        return scope.read(self._characters, end, final=final), scope

    def _cut_in(self, spans: Iterable[Span]) -> bool:
        """Cut the text at the first stop string in these parts, and return whether there is one."""
        return any(self._cut_within(*span) for span in spans)

    def _cut_within(self, begin: int, end: int) -> bool:
        """Cut the text at the first stop string in this part, and return whether there is one."""
        search_begin = max(begin, self._searched - self._longest_stop + 1)
        text = "".join(self._characters[search_begin:end])
        self._searched = max(self._searched, min(end, self._settled))
        matches = [(text.find(stop), stop) for stop in self._stop if stop in text]
        if not matches:
            return False
        offset, self.stopped_by = min(matches)
        self._cut_from = begin
        del self._characters[search_begin + offset :]
        del self._origins[search_begin + offset :]
        return True

    def _context(self, tokens: list[int]) -> list[int]:
        """The last few of some tokens and, if these have no text, the last few that have one before them."""
        end = len(tokens)
        while end > CONTEXT and not self._decode(tokens[end - CONTEXT : end]):
            end -= CONTEXT
        tokens_without_text = tokens[-CONTEXT:] if end < len(tokens) else []
        return tokens[max(0, end - CONTEXT) : end] + tokens_without_text

    def _decode(self, tokens: list[int]) -> str:
        if self._tokenizer is None:
            return ""
        if self._unspelled is None:
            return self._tokenizer.decode(tokens, skip_special_tokens=True)
        return self._tokenizer.decode([token for token in tokens if token not in self._unspelled])


def _shared_length(text: str, other_text: str) -> int:
    """The length of the common beginning of two texts."""
    if other_text.startswith(text):
        return len(text)
    for index, (character, counterpart) in enumerate(zip(text, other_text, strict=False)):
        if character != counterpart:
            return index
    return min(len(text), len(other_text))


def _unfinished_characters(text: str) -> int:
    """The length of the end of a text that following bytes may turn into another character."""
    return min(len(text) - len(text.rstrip(UNFINISHED)), MAX_UNFINISHED)


def check_stop(stop: Sequence[str], tokenizer: object, spelled: Sequence[int] = ()) -> None:
    """Refuse stop strings that contain a special token and other text, unless that token is one of `spelled`.

    Raises:
        ConfigError: if there is such a string; names the first of them, and the token.
    """
    if not stop:
        return
    special_texts = [text for token, text in special_tokens(tokenizer).items() if token not in spelled]
    for string in stop:
        if string in special_texts:
            continue
        for token_text in special_texts:
            if token_text and token_text in string:
                raise ConfigError(
                    f"the stop string {string!r} contains the special token {token_text!r}, which never appears in a "
                    f"text; give {token_text!r} alone, or the text beside it"
                )


def _cleans_up(tokenizer: Any) -> bool:
    """Whether a tokenizer removes spaces before punctuation; one of BPE does so only if it is forced to."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    bpe_option = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    cleans = getattr(tokenizer, "clean_up_tokenization_spaces", False)
    return bool(cleans and (type(model).__name__ != "BPE" or getattr(tokenizer, bpe_option, False)))


def _falls_back(tokenizer: Any) -> bool:
    """Whether a tokenizer has tokens for single bytes, of which one that is not UTF-8 changes those around it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return False
    run = [backend.token_to_id("<0x41>"), backend.token_to_id("<0xFF>")]
    return None not in run and tokenizer.decode(run) == 2 * UNFINISHED
