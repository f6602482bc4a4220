"""Finds where in a text stop strings apply: not in what a model thinks, nor in the marks around that."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]
"""The index of the first character of a part of a text, and of the first one after it."""


@dataclass(frozen=True)
class Stretch:
    """A stretch of a text in which stop strings do not apply. White space after it is part of it.

    Attributes:
        begin: the mark at its beginning.
        end: the mark at its end.
        opened: whether the text begins inside it.
        anywhere: whether it may begin anywhere, or only at the beginning of the text.
    """

    begin: str
    end: str
    opened: bool = False
    anywhere: bool = False


def unfinished(text: str, strings: Iterable[str]) -> int:
    """The length of the longest end of a text that is a beginning, but not the whole, of one of these strings."""
    max_length = 0
    for string in strings:
        for length in range(max_length + 1, len(string)):
            if text.endswith(string[:length]):
                max_length = length
    return max_length


class StopScope:
    """Follows a text as it grows, and finds in which parts of it stop strings apply.

    Args:
        stretches: the stretches in which stop strings do not apply.

    Attributes:
        decided: the number of characters for which it is known whether they belong to a stretch.
        begin: the beginning of the part that the text ends in; None inside a stretch.
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
        """Read a text further, and return the parts in which stop strings apply, without those that had ended before.

        The last part ends before what may be the beginning of a stretch, unless the text is final.

        Args:
            characters: the whole text so far.
            end: the number of characters to read up to.
            final: whether nothing follows.
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
        """Read up to the end of a stretch, and return whether it was found."""
        index = text.find(stretch.end)
        if index < 0:
            self.decided += max(0, len(text) - len(stretch.end) + 1)
            return False
        self.decided += index + len(stretch.end)
        self._inside = None
        self._skips_space = True
        return True

    def _skip_space(self, text: str) -> bool:
        """Read white space after a stretch, and return whether another character follows."""
        stripped_text = text.lstrip()
        self.decided += len(text) - len(stripped_text)
        if stripped_text:
            self._skips_space = False
            self.begin = self.decided
        return bool(stripped_text)

    def _say(self, text: str, spans: list[Span], final: bool) -> bool:
        """Read up to the next stretch, or to what may be the beginning of its mark; return whether one was found."""
        if self._first and self.decided == 0:
            stripped_text = text.lstrip()
            for stretch in self._first:
                if stripped_text.startswith(stretch.begin):
                    self._enter(stretch, len(text) - len(stripped_text))
                    return True
            if not final and any(stretch.begin.startswith(stripped_text) for stretch in self._first):
                return False
        self._first = []
        index, stretch = self._find_stretch(text)
        marks = [stretch.begin for stretch in self._anywhere]
        sure_length = len(text) - (0 if final else unfinished(text, marks))
        if stretch is None or sure_length <= index:
            self.decided += sure_length
            return False
        spans.append((self.begin or 0, self.decided + index))
        self._enter(stretch, index)
        return True

    def _find_stretch(self, text: str) -> tuple[int, Stretch | None]:
        """The index of the first mark that begins a stretch, and that stretch; of several marks there, the longest."""
        matches = [(text.index(stretch.begin), stretch) for stretch in self._anywhere if stretch.begin in text]
        if not matches:
            return len(text), None
        return min(matches, key=lambda match: (match[0], -len(match[1].begin)))

    def _enter(self, stretch: Stretch, index: int) -> None:
        self.decided += index + len(stretch.begin)
        self._inside = stretch
        self.begin = None
        self._first = []
