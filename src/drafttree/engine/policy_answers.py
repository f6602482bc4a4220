"""Checks what a policy, which may be a user's own, has answered."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.errors import ConfigError
from drafttree.policies.base import TreePolicy

KINDS = {"b": "bool", "i": "integer", "f": "float"}
"""Kinds of numbers in an array, by what numpy calls them."""


def checked_answer(policy: TreePolicy, hook: str, found: Any, kind: str, shape: Sequence[int]) -> Array:
    """What a policy has answered, if it is an array of this kind that fits the shape.

    Raises:
        ConfigError: it is not.
    """
    if isinstance(found, np.ndarray) and found.dtype.kind == kind:
        if found.shape == shape:
            return found
        try:
            return np.broadcast_to(found, shape)
        except ValueError:
            pass
    name = f"{type(policy).__name__}.{hook}"
    if isinstance(found, Tensor):
        raise ConfigError(f"{name} returns a torch tensor; policies decide on numpy arrays, see docs/writing.md")
    shown = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
    raise ConfigError(f"{name} returns {shown}; it must return a {KINDS[kind]} array that fits {list(shape)}")
