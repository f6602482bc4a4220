"""Where the keys of a TOML document stand, which tomllib does not tell."""

import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

Place = tuple[str | int, ...]
"""The way to a value: names of keys, and numbers of elements of lists."""


def locate(text: str, steps: Sequence[str | int]) -> tuple[Place, int | None]:
    """The steps of a way that a document has, and the line of the last of them; None where it has none.

    Args:
        text: a valid TOML document.
        steps: as pydantic tells a location: with steps between them that are no keys, and the last may be missing.
    """
    lines = _key_lines(text)
    place: Place = ()
    for step in steps:
        if (*place, step) in lines:
            place = (*place, step)
    return place, lines.get(place)


def _key_lines(text: str) -> dict[Place, int]:
    """The line of every key. Keys within a statement have the line on which it begins."""
    lines: dict[Place, int] = {}
    lengths = Counter[Place]()
    table: Place = ()
    statement, begin = "", 1
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        begin = begin if statement else number
        statement += line
        try:
            found = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:  # it goes on on the next line
            continue
        if statement.lstrip().startswith("["):
            *_, header = _places(found)
            table = ()
            for step in header:
                if step == 0:  # one more element of a list of tables
                    step, lengths[table] = lengths[table], lengths[table] + 1
                elif lengths[table]:  # within the last element of a list
                    table = (*table, lengths[table] - 1)
                table = (*table, step)
                lines.setdefault(table, begin)
        else:
            lines |= {(*table, *place): begin for place in _places(found)}
        statement = ""
    return lines


def _places(value: Any) -> Iterator[Place]:
    """The ways to all that is in a value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, within in steps:
        yield (step,)
        yield from ((step, *rest) for rest in _places(within))
