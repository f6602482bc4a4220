"""torch's inference mode, entered only where it is not yet on."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def in_inference_mode(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: run a function in inference mode. Entering it takes ten times as long as asking whether it is on."""
    inference_function = torch.inference_mode()(function)

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return (function if torch.is_inference_mode_enabled() else inference_function)(*args, **kwargs)

    return run
