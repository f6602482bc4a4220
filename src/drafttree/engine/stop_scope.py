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
    return max((n for each in strings for n in range(1, len(each)) if text.endswith(each[:n])), default=0)


class StopScope:
    """Follows a text as it grows, and tells in which parts of it stop strings apply.

    Args:
        stretches: where they do not.

    Attributes:
        begin: where the part begins that the text ends in, None inside a stretch.
        known: the characters of which it is known whether they belong to a stretch.
    """

    def __init__(self, stretches: Sequence[Stretch] = ()) -> None:
        self._inside = next((each for each in stretches if each.opened), None)
        self._first = [each for each in stretches if not each.anywhere]
        self._anywhere = [each for each in stretches if each.anywhere]
        self._skips_space = False
        self.begin = None if self._inside else 0
        self.known = 0

    def read(self, characters: Sequence[str], settled: int) -> list[Span]:
        """Read on in a text; the parts that have ended since the last call.

        Args:
            characters: the text so far.
            settled: the number of characters that no later token can change.
        """
        ended: list[Span] = []
        goes_on = True
        while goes_on and self.known < settled:
            text = "".join(characters[self.known : settled])
            if self._inside:
                goes_on = self._leave(self._inside, text)
            elif self._skips_space:
                goes_on = self._skip_space(text)
            else:
                goes_on = self._say(text, ended)
        return ended

    def holds(self, settled: int) -> bool:
        """Whether the end of the text may be the beginning of a stretch."""
        return self.known < settled or bool(self._first)

    def _leave(self, stretch: Stretch, text: str) -> bool:
        """Look for the end of a stretch."""
        place = text.find(stretch.end)
        if place < 0:
            self.known += max(0, len(text) - len(stretch.end) + 1)
            return False
        self.known += place + len(stretch.end)
        self._inside, self._skips_space = None, True
        return True

    def _skip_space(self, text: str) -> bool:
        """Look for the first character behind a stretch that is no white space."""
        said = text.lstrip()
        self.known += len(text) - len(said)
        if said:
            self._skips_space, self.begin = False, self.known
        return bool(said)

    def _say(self, text: str, ended: list[Span]) -> bool:
        """Look for the next stretch, up to what may be the beginning of its mark."""
        if self._first and self.known == 0:
            begun = text.lstrip()
            if stretch := next((each for each in self._first if begun.startswith(each.begin)), None):
                self._enter(stretch, len(text) - len(begun))
                return True
            if any(each.begin.startswith(begun) for each in self._first):
                return False
        self._first = []
        marks = [each.begin for each in self._anywhere]
        place = min((found for mark in marks if (found := text.find(mark)) >= 0), default=len(text))
        perhaps = len(text) - unfinished(text, marks)
        if perhaps <= place:
            self.known += perhaps
            return False
        ended.append((self.begin or 0, self.known + place))
        at_place = [each for each in self._anywhere if text.startswith(each.begin, place)]
        self._enter(max(at_place, key=lambda each: len(each.begin)), place)
        return True

    def _enter(self, stretch: Stretch, place: int) -> None:
        self.known += place + len(stretch.begin)
        self._inside, self.begin, self._first = stretch, None, []
