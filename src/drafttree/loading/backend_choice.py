"""The choice of a target's backend by the options of `load`."""

from collections.abc import Callable
from functools import partial

from transformers import PreTrainedModel

from drafttree.core.errors import ConfigError
from drafttree.models import LossyWindow, select_backend, select_exact_text, select_windowed
from drafttree.models.base import Backend

SINKS = 4
"""First tokens that stay visible in a window where it is not said how many (Xiao et al. 2023)."""


def choose_backend(exact_text: bool, lossy_window: int | None, sinks: int) -> Callable[[PreTrainedModel], Backend]:
    """The function that selects the backend of a module; arguments as for `drafttree.load`.

    Raises:
        ConfigError: an option is out of range, both are asked for, or sinks without a window.
    """
    if not isinstance(exact_text, bool):
        raise ConfigError(f"exact_text is {exact_text!r}; give True or False")
    if lossy_window is None and sinks != SINKS:
        raise ConfigError(f"sinks is {sinks!r}, but there is no lossy_window; give one, or leave sinks out")
    if lossy_window is None:
        return select_exact_text if exact_text else select_backend
    for name, value, least in (("lossy_window", lossy_window, 1), ("sinks", sinks, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} is {value!r}; give a whole number of tokens, at least {least}")
    if exact_text:
        raise ConfigError("exact_text cannot hold with a lossy_window; leave out one of them")
    return partial(select_windowed, window=LossyWindow(lossy_window, sinks))
