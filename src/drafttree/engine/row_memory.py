"""How many rows of a target's KV cache a share of the device's memory holds."""

import math

import torch

from drafttree.core.machine_memory import machine_memory
from drafttree.models import Model


def rows_in_memory(target: Model, share: float) -> float:
    """The rows that fit into a share of the memory; infinite where the size of a row or of the memory is not known.

    Args:
        target: the target whose rows they are.
        share: the share of the memory that is free on a GPU, or of all memory on other devices.
    """
    layout = getattr(target.new_cache(1), "layout", None)
    memory = _memory(target.device)
    if layout is None or memory is None:
        return math.inf
    width = getattr(target, "dtype", torch.float32).itemsize
    row = width * sum(heads * size * slots for heads, size, slots in layout.buffers)
    return share * memory // row if row else math.inf


def _memory(device: torch.device) -> int | None:
    """Bytes that are free on a GPU, or that the machine has; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    memory = machine_memory()
    return memory.total if memory else None
