"""Where in a text stop strings apply: not in what a model thinks, nor in the marks around that."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""The first character of a part of a text, and the first one behind it."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of a text in which stop strings do not apply. White space behind it is a part of it.

    Attributes:
        begin: the mark that it begins with.
        end: the mark that it ends with.
        opened: whether the text begins inside it.
        anywhere: whether it may begin anywhere; if not, only where the text does.
    """

    begin: str
    end: str
    opened: bool = False
    anywhere: bool = False


def unfinished(text: str, strings: Iterable[str]) -> int:
    """Length of the longest end of a text that one of these strings begins with, without being the whole string."""
    return max((n for string in strings for n in range(1, len(string)) if text.endswith(string[:n])), default=0)


class StopScope:
    """Follows a text as it grows, and tells in which parts of it stop strings apply.

    Args:
        stretches: where they do not.

    Attributes:
        decided: the characters of which it is known whether they belong to a stretch.
        begin: where the part begins that the text ends in, None in a stretch.
    """

    def __init__(self, stretches: Sequence[Stretch] = ()) -> None:
        self._inside = next((stretch for stretch in stretches if stretch.opened), None)
        self._first = [stretch for stretch in stretches if not stretch.anywhere]
        self._anywhere = [stretch for stretch in stretches if stretch.anywhere]
        self._skips_space = False
        self.begin = None if self._inside else 0
        self.decided = 0

    @property
    def inside(self) -> bool:
        """Whether the text ends in a stretch that has not ended."""
        return self._inside is not None

    def read(self, characters: Sequence[str], end: int, *, final: bool = False) -> list[Span]:
        """Read on in a text, up to a character; the parts in which stop strings apply and that had not ended before.

        The last part ends before what may be the beginning of a stretch, unless the text ends there.
        """
        spans: list[Span] = []
        goes_on = True
        while goes_on and self.decided < end:
            text = "".join(characters[self.decided : end])
            if self._inside:
                goes_on = self._leave(self._inside, text)
            elif self._skips_space:
                goes_on = self._skip_space(text)
            else:
                goes_on = self._say(text, spans, final)
        return spans if self.begin is None else [*spans, (self.begin, self.decided)]

    def _leave(self, stretch: Stretch, text: str) -> bool:
        """Look for the end of a stretch."""
        index = text.find(stretch.end)
        if index < 0:
            self.decided += max(0, len(text) - len(stretch.end) + 1)
            return False
        self.decided += index + len(stretch.end)
        self._inside = None
        self._skips_space = True
        return True

    def _skip_space(self, text: str) -> bool:
        """Look for the first character behind a stretch that is no white space."""
        stripped_text = text.lstrip()
        self.decided += len(text) - len(stripped_text)
        if stripped_text:
            self._skips_space = False
            self.begin = self.decided
        return bool(stripped_text)

    def _say(self, text: str, spans: list[Span], final: bool) -> bool:
        """Look for the next stretch, up to what may be the beginning of its mark."""
        if self._first and self.decided == 0:
            stripped_text = text.lstrip()
            if stretch := next((stretch for stretch in self._first if stripped_text.startswith(stretch.begin)), None):
                self._enter(stretch, len(text) - len(stripped_text))
                return True
            if not final and any(stretch.begin.startswith(stripped_text) for stretch in self._first):
                return False
        self._first = []
        marks = [stretch.begin for stretch in self._anywhere]
        index = min((begin for mark in marks if (begin := text.find(mark)) >= 0), default=len(text))
        sure_length = len(text) - (0 if final else unfinished(text, marks))
        if sure_length <= index:
            self.decided += sure_length
            return False
        spans.append((self.begin or 0, self.decided + index))
        at_index = [stretch for stretch in self._anywhere if text.startswith(stretch.begin, index)]
        self._enter(max(at_index, key=lambda stretch: len(stretch.begin)), index)
        return True

    def _enter(self, stretch: Stretch, index: int) -> None:
        self.decided += index + len(stretch.begin)
        self._inside = stretch
        self.begin = None
        self._first = []
