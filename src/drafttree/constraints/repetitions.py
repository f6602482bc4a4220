"""Refuses repetitions whose bounds xgrammar takes for others: it keeps them in 32 bits, so `a{4294967297}` is `a`."""

import re

from drafttree.core.errors import ConfigError

LARGEST = 2**31 - 1
BOUNDS = r"|\{\s*([0-9]+)\s*(?:,\s*([0-9]*)\s*)?\}"
CLASS, STRING, COMMENT = r"\[(?:\\.|[^\]\\])*\]", r'"(?:\\.|[^"\\])*"', r"#[^\n]*"
IN_REGEX = re.compile(rf"\\.|{CLASS}{BOUNDS}", re.DOTALL)
IN_EBNF = re.compile(rf"{STRING}|{CLASS}|{COMMENT}{BOUNDS}", re.DOTALL)
"""What may hold braces that are no repetition, then the bounds of one."""


def check_repetitions(name: str, text: str, parts: re.Pattern[str]) -> None:
    """Refuse a text in which something is repeated more often than 32 bits can say.

    Args:
        name: of the text in the message.
        text: a regular expression or an EBNF grammar.
        parts: `IN_REGEX` or `IN_EBNF`.

    Raises:
        ConfigError: names the repetition.
    """
    for part in parts.finditer(text):
        if any(count(bound) > LARGEST for bound in part.groups(default="")):
            raise ConfigError(f"invalid {name}: {part[0][:40]!r} repeats more than {LARGEST} times; lower its bounds")


def count(digits: str) -> int:
    """A bound of a repetition; one of more than ten digits as some number that is too large."""
    return int(digits.lstrip("0")[:11] or "0")
