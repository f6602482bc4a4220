"""Reads and writes JSON whose numbers keep their spelling. Python itself would write 1E400, -0 and 0.10 differently."""

import json
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any

from drafttree.interfaces.server.fields import MAX_NESTING, mistake


class WrittenFloat(float):
    """A number that Python would spell differently, with its original `text`."""

    text: str


class WrittenInteger(int):
    """An integer that Python would spell differently, with its original `text`."""

    text: str


def read_float(text: str) -> float:
    """Parse a number with a fraction or an exponent, for `json.loads`."""
    if repr(float(text)) == text:
        return float(text)
    number = WrittenFloat(text)
    number.text = text
    return number


def read_integer(text: str) -> int:
    """Parse a whole number, for `json.loads`.

    Raises:
        ValueError: the number has more digits than Python reads.
    """
    if text != "-0":
        return int(text)
    number = WrittenInteger(0)
    number.text = text
    return number


def write_json(value: Any, depth: int = 0) -> str:
    """Write a value that was parsed with `read_float` and `read_integer`, with the original spelling of numbers.

    Raises:
        PydanticCustomError: the value is nested too deeply, or has numbers that JSON does not allow, such as NaN.
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
"""Prefix of the placeholders for numbers. No client can guess it, so it occurs nowhere else."""
AGAIN = "".join(chr(0x20000 + secrets.randbelow(0xA000)) for _ in range(6))
"""Encloses the suffix of a repeated name in an object. These rare letters are changed by no template."""
NUMBERS, REPEATS = re.compile(rf"{NUMBER}(\d{{9}})"), re.compile(rf"{AGAIN}\d+{AGAIN}")


class WrittenArguments:
    """Passes arguments of calls through a chat template without changing their spelling.

    A template takes Python objects. In them, a placeholder replaces each number that Python would spell differently,
    and repeated names of an object get a suffix; `restored` undoes both in the rendered text.

    Args:
        mark_tokens: applied to a repeated name before the suffix is added.
    """

    def __init__(self, mark_tokens: Callable[[str], str] = str) -> None:
        self._written = list[str]()
        self._mark_tokens = mark_tokens

    def read(self, text: str) -> dict[str, Any]:
        """Parse arguments, a JSON object, for a template."""
        hooks = {"parse_int": self._integer, "parse_float": self._float, "parse_constant": self._stand_in}
        return json.loads(text, object_pairs_hook=self._with_repeats, **hooks)

    def restored(self, rendered: str) -> str:
        """Replace the placeholders in a rendered text, and remove the suffixes."""
        return NUMBERS.sub(lambda match: self._written[int(match[1])], REPEATS.sub("", rendered))

    def _stand_in(self, text: str) -> int:
        self._written.append(text)
        return int(f"{NUMBER}{len(self._written) - 1:09}")

    def _integer(self, text: str) -> int:
        is_plain = text != "-0" and len(text) <= sys.get_int_max_str_digits()
        return int(text) if is_plain else self._stand_in(text)

    def _float(self, text: str) -> float:
        return float(text) if repr(float(text)) == text else self._stand_in(text)

    def _with_repeats(self, members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        """A dictionary of the members of an object, in which repeated names get a suffix."""
        values: dict[str, Any] = {}
        for name, value in members:
            values[f"{self._mark_tokens(name)}{AGAIN}{len(values)}{AGAIN}" if name in values else name] = value
        return values
