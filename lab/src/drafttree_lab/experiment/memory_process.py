"""The process that `bench memory` starts for one method: its task comes on standard input, what it needed goes out."""

import gc
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from drafttree.core.errors import DraftTreeError
from drafttree.engine.metrics import peak_memory
from drafttree.loading.load import load
from drafttree.measure.method import NO_DRAFTER, Method
from drafttree_lab.experiment.memory import REFUSED, MemorySetting, MemoryUse

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""What Linux resets the peak of the resident memory by (proc(5))."""


def measure(setting: MemorySetting, method: Method) -> MemoryUse:
    """Load a method's models and decode, minding the memory of this process."""
    parts = (method.drafter or NO_DRAFTER, method.policy, method.verifier)
    decoder = load(setting.target, *parts, dtype=setting.dtype, device=setting.device)
    gc.collect()
    loaded, device_loaded = resident("VmRSS"), _on_device(torch.cuda.memory_allocated)
    reset_peak()
    _on_device(torch.cuda.reset_peak_memory_stats)
    tokens = sum(len(decoder.generate(prompt, **setting.options).tokens) for prompt in setting.prompts)
    peak = max(loaded, resident("VmHWM"))  # memory may be given back between the reading and the reset
    return MemoryUse(loaded, peak, device_loaded, _on_device(torch.cuda.max_memory_allocated), tokens)


def reset_peak() -> None:
    """Let the peak of the resident memory begin anew, where the system can."""
    with suppress(OSError):
        CLEAR.write_text(RESET_PEAK)


def resident(field: str) -> int:
    """Bytes of resident memory: "VmRSS" now, "VmHWM" at most; where the system is not Linux, both at most.

    `getrusage` is no help on Linux: its peak is inherited from the process that has started this one.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return peak_memory()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _on_device(function: Callable[[], int | None]) -> int:
    """The result of a function of the GPU's memory, 0 where none is in use."""
    return (function() or 0) if torch.cuda.is_available() and torch.cuda.is_initialized() else 0


def main() -> None:
    """Do the task of standard input."""
    task = json.load(sys.stdin)
    try:
        found = asdict(measure(MemorySetting(**task["setting"]), Method.parse(task["method"])))
    except DraftTreeError as error:
        found = {REFUSED: str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
