"""Counting what a function waits for the device for."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Reads(TorchDispatchMode):
    """Counts reads of numbers, and results whose shape depends on values, as a far device would wait for them.

    Attributes:
        count: so far.
        paused: whether to count nothing.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.count, self.paused = 0, False
        patch.setattr(torch.Tensor, "is_cpu", False)  # so nothing takes a way that only a CPU has
        for name in ("tolist", "item", "numpy", "__bool__", "__int__", "__float__", "__index__"):
            patch.setattr(torch.Tensor, name, self._counted(getattr(torch.Tensor, name)))

    def _counted(self, method):
        def counted(tensor, *args, **kwargs):
            self.count += not self.paused
            paused, self.paused = self.paused, True
            try:
                return method(tensor, *args, **kwargs)
            finally:
                self.paused = paused

        return counted

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waits = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
        self.count += func in waits and not self.paused
        return func(*args, **(kwargs or {}))
