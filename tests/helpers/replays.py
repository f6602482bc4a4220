"""Stand-ins for a recorder of CUDA graphs, on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from drafttree.models.cache.buffer_pool import RecordedPass


class Replays:
    """Repeats passes as a graph does: into the memory of the first time."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, run: RecordedPass) -> RecordedPass:
        self.recorded += 1
        first = run()

        def replay() -> tuple[Tensor, ...]:
            for old, new in zip(first, run(), strict=True):
                old.copy_(new)
            return first

        return replay


class Operations(Replays):
    """Repeats the operations of the first time on the same memory, with the same numbers from the host.

    Python does not run again, so a pass that depends on what the host knew is found, as one that reads the device is.
    """

    def __call__(self, run: RecordedPass) -> RecordedPass:
        self.recorded += 1
        with self.recording() as recording:
            outputs = run()

        def replay() -> tuple[Tensor, ...]:
            for operation, arguments, named, results in recording.calls:
                for old, new in zip(results, tree_leaves(operation(*arguments, **named)), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return outputs

        return replay

    @contextmanager
    def recording(self) -> Iterator["Recording"]:
        """Context manager: note what is called."""
        with Recording() as recording:
            yield recording


class Recording(TorchDispatchMode):
    """Notes all operations of torch.

    Attributes:
        calls: functions, their arguments, and the tensors that they returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        results = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tree_leaves(results)))
        return results


def unrecorded(run: RecordedPass) -> None:
    """Cannot record."""


def frozen(run: RecordedPass) -> RecordedPass:
    """Repeats nothing: gives the outputs of the first time again."""
    outputs = run()
    return lambda: outputs
