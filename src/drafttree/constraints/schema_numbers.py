"""Numbers of a JSON schema that xgrammar cannot read, or reads as others.

It keeps whole numbers in 64 bits, numbers of properties in 32 and all others as doubles. Beyond these a bound becomes
another one (`minimum: 1e19` forbids 2e19), and a constant is written as a double; a number that no double holds fails
without a message.
"""

import math
import sys
from collections.abc import Iterator
from typing import Any, TypeGuard

from drafttree.constraints.repetitions import LARGEST
from drafttree.constraints.schema_comparison import Schema
from drafttree.core.errors import ConfigError

RANGE_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LARGEST_WHOLE = 2**63 - 1
LARGEST_MULTIPLE = 1024
"""The largest `multipleOf` that xgrammar enforces."""
SHOWN_DIGITS = 20


def check_numbers(schema: Any) -> None:
    """Refuse a schema with a number that xgrammar cannot read.

    Raises:
        ConfigError: names the number.
    """
    for number in _numbers(schema):
        if not (abs(number) <= sys.float_info.max if isinstance(number, int) else math.isfinite(number)):
            raise ConfigError(
                f"invalid JSON schema: {_shown(number)} is not a number that xgrammar can read; leave it out"
            )


def ignored_numbers(schema: Schema) -> Iterator[str]:
    """Yield the numbers of a schema that xgrammar takes for others, without looking into the schemas inside it."""
    for keyword in RANGE_KEYWORDS:
        if _is_number(bound := schema.get(keyword)) and abs(bound) > LARGEST_WHOLE:
            yield f"{keyword!r} of {_shown(bound)}, which is beyond 64 bits,"
    for keyword in ("minLength", "maxLength", "minItems"):  # xgrammar itself refuses others below 0
        if _is_number(bound := schema.get(keyword)) and bound < 0:
            yield f"{keyword!r} of {_shown(bound)}, which is below 0,"
    for keyword in ("minProperties", "maxProperties"):
        if _is_number(bound := schema.get(keyword)) and bound > LARGEST:
            yield f"{keyword!r} of {_shown(bound)}, which is beyond 32 bits,"
    for keyword in ("const", "enum"):
        for number in _numbers(schema.get(keyword)):
            if isinstance(number, int) and abs(number) > LARGEST_WHOLE:
                yield f"{_shown(number)} in {keyword!r}, which is beyond 64 bits,"
    multiple = schema.get("multipleOf")
    if isinstance(multiple, int) and multiple > LARGEST_MULTIPLE:
        yield f"'multipleOf' {_shown(multiple)}, which is more than {LARGEST_MULTIPLE},"


def _numbers(root: Any) -> Iterator[float]:
    """All numbers in a value, at any depth."""
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif _is_number(value):
            yield value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(number: float) -> str:
    text = str(number)
    return text if len(text) <= SHOWN_DIGITS else f"{text[:8]}... ({len(text.lstrip('-'))} digits)"
