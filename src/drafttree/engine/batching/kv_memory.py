"""How many rows the KV caches of an engine may have together."""

import math

import torch

from drafttree.core.counts import check_count
from drafttree.core.errors import ContextError
from drafttree.core.machine_memory import machine_memory
from drafttree.models import Model

SHARE = 0.5
"""The share of the memory that is free on a GPU, or of all memory on other devices, for rows of the target."""


class KVMemory:
    """Reserves rows of KV caches for requests, so that one that was admitted always has room to end.

    Args:
        target: the target whose rows they are.
        max_tokens: rows there may be in all, None for half of the device's memory.

    Attributes:
        rows: as given, or found; infinite where the size of a row or of the memory is not known.
        reserved: rows that are reserved by the requests that run.

    Raises:
        ConfigError: `max_tokens` is no whole number of at least 1.
    """

    def __init__(self, target: Model, max_tokens: int | None = None) -> None:
        if max_tokens is not None:
            check_count("max_kv_tokens", max_tokens, ", or None for what fits")
        self.rows = _rows_that_fit(target) if max_tokens is None else float(max_tokens)
        self.reserved = 0

    @property
    def usage(self) -> float:
        """The share of the rows that is reserved; 0 where it is not known how many there are."""
        return self.reserved / max(self.rows, 1)

    def check(self, rows: int) -> None:
        """Refuse a request that could never run.

        Raises:
            ContextError: it needs more rows than there are.
        """
        if rows > self.rows:
            raise ContextError(
                f"the request needs {rows} rows of the KV cache for its prompt, max_new_tokens and the largest tree, "
                f"and the engine has {self.rows:.0f}; shorten them, or raise max_kv_tokens"
            )

    def fits(self, rows: int) -> bool:
        """Whether so many more rows can be reserved."""
        return self.reserved + rows <= self.rows


def _rows_that_fit(target: Model) -> float:
    layout = getattr(target.new_cache(1), "layout", None)
    memory = _memory(target.device)
    if layout is None or memory is None:
        return math.inf
    width = getattr(target, "dtype", torch.float32).itemsize
    row = width * sum(heads * size * slots for heads, size, slots in layout.buffers)
    return SHARE * memory // row if row else math.inf


def _memory(device: torch.device) -> int | None:
    """Bytes that are free on a GPU, or that the machine has; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    memory = machine_memory()
    return memory.total if memory else None
