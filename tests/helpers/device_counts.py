"""What rounds would do on a device beside recorded passes, counted on a CPU that is taken for one."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from drafttree import Decoder
from drafttree.drafters.head_backend import HeadBackend
from drafttree.engine.round_loop import RoundLoop
from drafttree.loading import find_device, load_model, load_tokenizer, make_policy
from drafttree.measure.inflation import find_drafter
from drafttree.models import TargetModel, host_copies
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded import masked_inputs, packed_inputs
from drafttree.models.recorded.recorded_passes import RecordedBackend
from helpers.varlen import stand_in

VIEW_NAMES = """
_unsafe_view _reshape_alias alias as_strided chunk detach detach_ diagonal empty empty_like empty_strided expand
flatten lift_fresh narrow new_empty permute promote_types reshape resolve_conj resolve_neg result_type select slice
split split_with_sizes squeeze t to transpose unbind unflatten unfold unsqueeze view view_as _local_scalar_dense
"""
VIEWS = frozenset(VIEW_NAMES.split())
"""Operations that start no kernel; `to` does not where neither dtype nor device changes."""
READS = "cpu", "item", "tolist", "__bool__", "__float__", "__int__"
"""Methods of tensors that wait for a device."""


class DeviceCounts(TorchDispatchMode):
    """Counts kernels outside recorded passes, launches of these, copies to the device, and waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.counts, self._silent = Counter[str](), 0
        self._indices = ListIndices(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.name().split("::")[1].split(".")[0] not in VIEWS:
            self.note("kernels")
        return func(*args, **(kwargs or {}))

    def note(self, event: str) -> None:
        """Count an event, unless it is part of another."""
        self.counts[event] += not self._silent

    def __enter__(self) -> Self:
        self._indices.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._indices.__exit__(*error)

    @contextmanager
    def within(self, event: str) -> Iterator[None]:
        """Count an event, and nothing of what happens in it."""
        self.note(event)
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def noted(self, event: str, function: Any) -> Any:
        """The function, whose calls are counted as events."""

        def run(*given: Any, **named: Any) -> Any:
            with self.within(event):
                return function(*given, **named)

        return run

    def recorder(self, run: Any) -> Any:
        """Stands for CUDA's graphs: a replay is one launch."""
        with self.within("recordings"):
            run()
        return self.noted("launches", run)


class ListIndices(TorchFunctionMode):
    """Counts tensors indexed by lists, which are copied to the device first: a wait.

    A mode, as `Tensor.__getitem__` cannot be replaced for a while: a class that once had one of its own is a sequence
    to CPython from then on, and `torch.tensor` refuses lists of its numbers.
    """

    def __init__(self, counts: DeviceCounts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            index = args[1]
            if any(isinstance(part, list) for part in (index if isinstance(index, tuple) else (index,))):
                self.counts.note("waits")
        return func(*args, **(kwargs or {}))


def decoder_of(counts: DeviceCounts, drafter: str | None, policy: str) -> Decoder:
    """The embedded target with a drafter, whose passes and heads are recorded."""
    module = load_model("embedded", torch.float32, find_device("cpu"))
    target = TargetModel(module, lambda part: RecordedBackend(FusedBackend(part), counts.recorder, stand_in()))
    decoder = Decoder(target, None, make_policy(policy), tokenizer=load_tokenizer("embedded"))
    if drafter is None:
        return decoder
    found = find_drafter(drafter, target, decoder.tokenizer, None)
    heads: Any = getattr(found, "model", found)
    if hasattr(heads, "_selected"):
        heads.heads = tuple(
            HeadBackend(head, RecordedBackend(FusedBackend(head), counts.recorder, stand_in()))
            for head in heads.modules
        )
        heads._selected = []
    return decoder.with_drafter(found)


def take_for_a_device(counts: DeviceCounts, patch: pytest.MonkeyPatch) -> None:
    """Let the code of rounds take the CPU for a device, and count what it copies and waits for."""
    for name in READS:
        patch.setattr(Tensor, name, counts.noted("waits", getattr(Tensor, name)))
    patch.setattr(Tensor, "is_cpu", property(lambda self: False), raising=False)
    make_tensor = torch.tensor

    def tensor(data: Any, *given: Any, **named: Any) -> Tensor:
        with counts.within("waits" if "device" in named and isinstance(data, list | tuple) else "numbers"):
            return make_tensor(data, *given, **named)

    patch.setattr(torch, "tensor", tensor)
    for module in [*sys.modules.values()]:
        if (
            getattr(module, "__name__", "").startswith("drafttree")
            and getattr(module, "send", None) is host_copies.send
        ):
            patch.setattr(module, "send", counts.noted("copies", host_copies.send))
    for module in (masked_inputs, packed_inputs):
        patch.setattr(module, "send_to", counts.noted("copies", host_copies.send_to))
    make_loop = RoundLoop.__init__

    def reading_at_once(self: RoundLoop, *given: Any) -> None:
        make_loop(self, *given)
        self.reads_at_once = True

    patch.setattr(RoundLoop, "__init__", reading_at_once)
