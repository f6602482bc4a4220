"""Refuses `torch.autocast`, which changes what a model's own layers compute."""

import torch

from drafttree.core.errors import ConfigError


def refuse_autocast(device: torch.device) -> None:
    """Refuse to run a model where torch would change the dtype of its operations.

    Its own `generate` writes another text there. Packed passes and the threads of engines know nothing of it.

    Raises:
        ConfigError: `torch.autocast` is active for this kind of device.
    """
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        raise ConfigError(
            f"torch.autocast({kind!r}, {dtype}) is active, which changes what the model computes; leave its block, or "
            f"enter torch.autocast({kind!r}, enabled=False), and convert the model or load it with dtype={dtype!r} to "
            "compute in that"
        )
