"""Tells whether a regular expression may match a name, without backtracking.

Patterns of JSON schemas come from clients. Python's `re` tries the ways to match one after the other, of which some
patterns have exponentially many, and lets no other thread run meanwhile. Here a part of a pattern maps the set of
positions where it can start to the set of those where it can end. Syntax that JSON Schema's dialect (ECMA-262) and
Python read differently is not judged: such a pattern may match.
"""

import re
from typing import NamedTuple

MAX_STEPS = 500_000
"""Parts of patterns and characters of names looked at in one document, which takes less than a second."""
MAX_GROUPS = 50
"""Groups of a pattern inside each other."""

ESCAPE = r"\\(?:[dDwWsSnrtfv]|[^\w\s])"
TOKEN = re.compile(
    rf"(?P<atom>{ESCAPE}|\[\^?(?:(?!--|&&|~~|\|\|)[^\[\]\\]|{ESCAPE})+\]|[^\\\[\](){{}}|*+?])"
    r"|(?P<repeat>(?:[*+?]|\{(?P<least>[0-9]{1,9})(?P<comma>,(?P<most>[0-9]{1,9})?)?\})\??)"
    r"|(?P<open>\(\?:|\((?!\?))|(?P<close>\))|(?P<bar>\|)"
)
COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class Repeat(NamedTuple):
    """A part that occurs `least` to `most` times; None for any number."""

    part: "Part"
    least: int
    most: int | None


Part = str | Repeat | list[list]
"""An anchor or what matches one character; a repetition; or a group's alternatives, each a sequence of parts."""


class _StepsSpent(Exception):
    """The steps of a document are used up."""


class NamePatterns:
    """Patterns and names of one document, which together may take `MAX_STEPS`."""

    def __init__(self) -> None:
        self._left = MAX_STEPS
        self._parsed: dict[str, list[list[Part]] | None] = {}

    def may_match(self, pattern: str, name: str) -> bool:
        """Whether a pattern may match a part of a name; True also where that is not found out."""
        if pattern not in self._parsed:
            self._parsed[pattern] = _parse(pattern)
        alternatives = self._parsed[pattern]
        if alternatives is None or not name.isprintable():
            return True
        try:
            return bool(self._ends(alternatives, (2 << len(name)) - 1, name, {}))
        except (_StepsSpent, re.error):
            return True

    def _ends(self, part: Part, starts: int, name: str, found: dict[str, int]) -> int:
        """Where a part of a pattern can end that starts at one of some positions; bit n is behind n characters."""
        self._spend(1 + len(name) // 64)
        match part:
            case "^":
                return starts & 1
            case "$":
                return starts & 1 << len(name)
            case str():
                if part not in found:
                    found[part] = self._occurrences(part, name)
                return (starts & found[part]) << 1
            case Repeat(inner, least, most):
                # More repetitions than positions reach no other positions.
                longest = len(name) + 1
                for _ in range(min(least, longest)):
                    starts = self._ends(inner, starts, name, found)
                reached = starts
                for _ in range(longest if most is None else min(most - least, longest)):
                    starts = self._ends(inner, starts, name, found) & ~reached
                    reached |= starts
                    if not starts:
                        break
                return reached
        ends = 0
        for sequence in part:
            at = starts
            for each in sequence:
                at = at and self._ends(each, at, name, found)
            ends |= at
        return ends

    def _occurrences(self, atom: str, name: str) -> int:
        """Positions of the characters that match by the tables of Unicode or by those of ASCII."""
        self._spend(len(name))
        both = (re.finditer(atom, name, flags) for flags in (re.UNICODE, re.ASCII))
        return sum(1 << place for place in {found.start() for each in both for found in each})

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _StepsSpent


def _parse(pattern: str) -> list[list[Part]] | None:
    """The alternatives of a pattern, None if it is not judged."""
    groups: list[list[list[Part]]] = [[[]]]
    at = 0
    while at < len(pattern):
        token = TOKEN.match(pattern, at)
        if token is None:
            return None
        at, sequence = token.end(), groups[-1][-1]
        match token.lastgroup:
            case "open" if len(groups) <= MAX_GROUPS:
                groups.append([[]])
            case "close" if len(groups) > 1:
                group = groups.pop()
                groups[-1][-1].append(group)
            case "bar":
                groups[-1].append([])
            case "atom":
                sequence.append(token[0])
            case "repeat" if sequence and not isinstance(sequence[-1], Repeat):
                sequence[-1] = Repeat(sequence[-1], *_counts(token))
            case _:
                return None
    return groups[0] if len(groups) == 1 else None


def _counts(token: re.Match[str]) -> tuple[int, int | None]:
    if token["least"] is None:
        return COUNTS[token[0][0]]
    least = int(token["least"])
    if token["comma"] is None:
        return least, least
    return least, None if token["most"] is None else int(token["most"])
