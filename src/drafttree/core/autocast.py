"""Refuses `torch.autocast`, which changes what a model's own layers compute."""

import torch

from drafttree.core.errors import ConfigError


def refuse_autocast(device: torch.device) -> None:
    """Refuse to run a model while torch would change the dtype of its operations.

    The model's own `generate` then writes another text, and packed passes and engine threads ignore autocast.

    Raises:
        ConfigError: `torch.autocast` is active for this kind of device.
    """
    device_type = device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        dtype = str(torch.get_autocast_dtype(device_type)).removeprefix("torch.")
        raise ConfigError(
            f"torch.autocast({device_type!r}, {dtype}) is active, which changes what the model computes; leave its "
            f"block, or enter torch.autocast({device_type!r}, enabled=False), and convert the model or load it with "
            f"dtype={dtype!r} to compute in that"
        )
