"""JSON whose numbers stay as they were written: read as Python's, 1E400, -0 and 0.10 would become other texts."""

import json
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any

from drafttree.interfaces.server.fields import MAX_NESTING, mistake


class WrittenFloat(float):
    """A number that Python writes in another way."""

    text: str


class WrittenInteger(int):
    """The same, whole."""

    text: str


def read_float(text: str) -> float:
    """A number with a fraction or an exponent."""
    if repr(float(text)) == text:
        return float(text)
    number = WrittenFloat(text)
    number.text = text
    return number


def read_integer(text: str) -> int:
    """A whole number.

    Raises:
        ValueError: it has more digits than Python reads.
    """
    if text != "-0":
        return int(text)
    number = WrittenInteger(0)
    number.text = text
    return number


def write_json(value: Any, depth: int = 0) -> str:
    """What was read by these, as JSON.

    Raises:
        PydanticCustomError: it is nested too deeply, or holds what Python's parser takes and JSON does not know.
    """
    if depth >= MAX_NESTING:
        raise mistake("nested_too_deeply", f"this is nested more than {MAX_NESTING} levels deep")
    match value:
        case dict():
            names = (json.dumps(name, ensure_ascii=False) for name in value)
            values = (write_json(member, depth + 1) for member in value.values())
            return f"{{{', '.join(map(': '.join, zip(names, values, strict=True)))}}}"
        case list():
            return f"[{', '.join(write_json(member, depth + 1) for member in value)}]"
        case WrittenFloat() | WrittenInteger():
            return value.text
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise mistake("no_json", f"this is not JSON: {error}") from None


NUMBER = f"7{secrets.randbelow(10**17):017}"
"""Begins the numbers that stand for others. No client can guess it, so no other text has it."""
AGAIN = "".join(chr(0x20000 + secrets.randbelow(0xA000)) for _ in range(6))
"""Stands around what is added to a name that its object has had before: rare letters, which no template changes."""
NUMBERS, REPEATS = re.compile(rf"{NUMBER}(\d{{9}})"), re.compile(rf"{AGAIN}\d+{AGAIN}")


class WrittenArguments:
    """The arguments of calls as a chat template is given them, and as they are to stand in what it renders.

    A template is given Python's objects. A number stands there for one that Python writes in another way, and something
    is added to a name that comes again.

    Args:
        kept: what is done to a name before that.
    """

    def __init__(self, kept: Callable[[str], str] = str) -> None:
        self._written = list[str]()
        self._kept = kept

    def read(self, text: str) -> dict[str, Any]:
        """Arguments that are a JSON object, for a template."""
        hooks = {"parse_int": self._integer, "parse_float": self._float, "parse_constant": self._stand_in}
        return json.loads(text, object_pairs_hook=self._with_repeats, **hooks)

    def restored(self, rendered: str) -> str:
        """What a template has rendered, with the arguments as they were written."""
        return NUMBERS.sub(lambda found: self._written[int(found[1])], REPEATS.sub("", rendered))

    def _stand_in(self, text: str) -> int:
        self._written.append(text)
        return int(f"{NUMBER}{len(self._written) - 1:09}")

    def _integer(self, text: str) -> int:
        is_plain = text != "-0" and len(text) <= sys.get_int_max_str_digits()
        return int(text) if is_plain else self._stand_in(text)

    def _float(self, text: str) -> float:
        return float(text) if repr(float(text)) == text else self._stand_in(text)

    def _with_repeats(self, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """A dictionary that has a name as often as an object does."""
        values: dict[str, Any] = {}
        for name, value in pairs:
            values[f"{self._kept(name)}{AGAIN}{len(values)}{AGAIN}" if name in values else name] = value
        return values
