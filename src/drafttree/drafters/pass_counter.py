"""Counts and times a drafter's forward passes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from drafttree.core.timing import PassTimer


class PassCounter:
    """Base of draft sessions: `with self.count_pass():` around a forward pass counts and times it.

    Args:
        device: of the passes.

    Attributes:
        passes: forward passes so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.passes = 0
        self.timer = PassTimer(device)

    @property
    def seconds(self) -> float:
        """Seconds spent in the passes; on CUDA, reading it waits for the last of them."""
        return self.timer.seconds

    @contextmanager
    def count_pass(self) -> Iterator[None]:
        """Count and time the block as one forward pass."""
        with self.timer:
            yield
        self.passes += 1
