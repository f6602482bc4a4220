"""Tells errors of memory that ran out from others."""

import torch

SIGNS = ("not enough memory", "out of memory", "can't allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device: torch's allocator for CPUs raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
