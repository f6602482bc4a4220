"""torch's inference mode, entered only where it is not yet on."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_inference_mode(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Decorate a function to run in inference mode; entering it takes ten times as long as asking whether it is on."""
    inference_function = torch.inference_mode()(function)

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        return (function if torch.is_inference_mode_enabled() else inference_function)(*given, **named)

    return run
