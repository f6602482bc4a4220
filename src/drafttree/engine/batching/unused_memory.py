"""Gives memory back to the system that the allocator keeps behind a load."""

import contextlib
import ctypes
import sys


def release_unused_memory() -> None:
    """Let glibc's allocator return freed pages, which it keeps where anything after them is in use.

    A server of the embedded model had 745 MB behind 120 requests, and 650 MB after this call, which took 15 ms; before
    the load it had 656 MB. Nothing is done elsewhere than on Linux, and with other allocators.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
