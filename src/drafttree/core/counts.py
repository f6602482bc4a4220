"""Checks of numbers that count something, and the defaults that several interfaces share."""

from numbers import Integral
from typing import TypeGuard

from drafttree.core.errors import ConfigError

MAX_BATCH = 16
"""Default of the largest number of texts that are written at once."""
MAX_TOKEN_GAP = 0.2
"""Default of the seconds between two tokens of a text that reading other prompts may cause."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, of numpy too, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_token_ids(ids: object) -> bool:
    """True for a list of whole numbers."""
    return isinstance(ids, list | tuple) and all(is_whole(token) for token in ids)


def check_count(name: str, count: object, otherwise: str = "", *, least: int = 1) -> None:
    """Refuse what does not count anything.

    Args:
        name: name of the option.
        count: its value.
        otherwise: what may be given instead; the end of the message.
        least: the smallest that it may be.

    Raises:
        ConfigError: it is not a whole number of at least that.
    """
    if not is_whole(count) or count < least:
        raise ConfigError(f"{name} is {count!r}; it must be a whole number of at least {least}{otherwise}")
