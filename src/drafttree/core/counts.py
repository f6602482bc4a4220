"""Checks of numbers that count something, and the defaults that several interfaces share."""

from numbers import Integral
from typing import TypeGuard

from drafttree.core.errors import ConfigError

MAX_BATCH = 16
"""Default of the largest number of texts that are written at once."""
MAX_TOKEN_GAP = 0.2
"""Default of the most seconds between two tokens of a text while other prompts are read."""
MAX_IMAGES = 100
"""Default of the most images of a request."""
MAX_PIXELS = 100_000_000
"""Default of the most pixels of a request's images together."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, perhaps numpy's, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_token_ids(ids: object) -> bool:
    """Whether a value is a list or tuple of whole numbers."""
    return isinstance(ids, list | tuple) and all(is_whole(token) for token in ids)


def check_count(name: str, count: object, otherwise: str = "", *, minimum: int = 1) -> None:
    """Check that an option's value is a whole number that is large enough.

    Args:
        name: name of the option.
        count: its value.
        otherwise: end of the message, which names the other possible values.
        minimum: smallest value allowed.

    Raises:
        ConfigError: the value is not a whole number of at least `minimum`.
    """
    if not is_whole(count) or count < minimum:
        raise ConfigError(f"{name} is {count!r}; it must be a whole number of at least {minimum}{otherwise}")
