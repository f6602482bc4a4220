"""Counts and times a drafter's forward passes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from drafttree.core.timing import PassTimer, time_together


class PassCounter:
    """Base of draft sessions: `with count_pass(sessions):` around a forward pass counts and times it.

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
def count_pass(sessions: Sequence[PassCounter]) -> Iterator[None]:
    """Count and time the block as one forward pass of each session, which all wait for the whole of it."""
    with time_together([session.timer for session in sessions]):
        yield
    for session in sessions:
        session.passes += 1
