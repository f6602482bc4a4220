"""What every draft counts of its work."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from drafttree.core.timing import PassTimer


class PassCounter:
    """Base of drafts: `with self.counted():` around a pass counts it and its time.

    Args:
        device: where the passes run.

    Attributes:
        passes: how many so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.passes = 0
        self.timer = PassTimer(device)

    @property
    def seconds(self) -> float:
        """Time in them."""
        return self.timer.seconds

    @contextmanager
    def counted(self) -> Iterator[None]:
        """The block of one pass."""
        with self.timer:
            yield
        self.passes += 1
