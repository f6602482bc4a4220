"""torch's inference mode, entered once."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

Given = ParamSpec("Given")
Result = TypeVar("Result")


def in_inference_mode(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run a function in torch's inference mode, which takes ten times as long to enter as to be looked for."""
    inference_function = torch.inference_mode()(function)

    @wraps(function)
    def run(*given: Given.args, **named: Given.kwargs) -> Result:
        return (function if torch.is_inference_mode_enabled() else inference_function)(*given, **named)

    return run
