"""Refuses `torch.autocast`, which changes what a model's own layers compute."""

import torch

from drafttree.core.errors import ConfigError


def refuse_autocast(device: torch.device) -> None:
    """Refuse to run a model where torch would change the dtype of its operations.

    Its own `generate` writes another text there. Packed passes and the threads of engines know nothing of it.

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
