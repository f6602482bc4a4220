"""Where tensors live, as far as it changes what the host does."""

from torch import Tensor

NEAR = {"cpu"}
"""Devices whose results the host need not wait for."""


def near(tensor: Tensor) -> bool:
    """Whether a value of this tensor can be read at once."""
    return tensor.device.type in NEAR
