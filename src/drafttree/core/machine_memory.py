"""The memory of the machine or container: how much there is, and how unused memory is given back."""

import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

MEMINFO = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")
M_ARENA_MAX = -8
"""The parameter of glibc's `mallopt`, of <malloc.h>."""
ENDED = ("not enough memory", "out of memory", "can't allocate memory")


class MachineMemory(NamedTuple):
    """The memory of a machine.

    Attributes:
        total: bytes that the machine has, or that its container may use.
        free: bytes that can still be had without swapping.
    """

    total: int
    free: int


def machine_memory() -> MachineMemory | None:
    """The memory now, None if it is not known; on systems other than Linux all of it is taken to be free."""
    try:
        memory = _linux_memory()
    except (OSError, ValueError, KeyError, IndexError):
        memory = None
    if memory:
        return memory
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    return MachineMemory(total, total)


def release_unused_memory() -> None:
    """Let glibc's allocator return freed pages, which it keeps while memory after them is in use.

    A server of the embedded model used 656 MB before a load of 120 requests and 745 MB after it. This call took 15 ms,
    and left 650 MB. On other systems than Linux, and with other allocators, nothing is done.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def share_arenas() -> None:
    """Let all threads share two arenas of glibc's allocator, since it does not return memory freed in other arenas.

    Eight long grammars left 40 to 64 MB behind in a server of the embedded model, and 8 to 24 MB with this. It must be
    called before threads are started. On other systems than Linux, and with other allocators, nothing is done.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, 2)


class CollectionPause:
    """Context manager: no garbage collections while very many objects are made, since each would visit them all.

    Collections take nine tenths of the time to read a body of 24,000 messages, and they hold up every thread. Several
    threads may pause collections at the same time. Grammar masks are also made in a pause, so that no collection counts
    toward their time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses = 0
        self._resumes = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._pauses:
                self._resumes = gc.isenabled()
                gc.disable()
            self._pauses += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._pauses -= 1
            if not self._pauses and self._resumes:
                gc.enable()


collection_pause = CollectionPause()
"""The only instance in a process, since one pause must not end another."""


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Context manager: leave objects that exist now out of garbage collections.

    With them, each collection would take a tenth of a second, and hold up texts.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on any device: torch's allocator for CPUs raises a plain RuntimeError."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in ENDED)


def _linux_memory() -> MachineMemory:
    fields = {name: int(value.split()[0]) * 1024 for name, value in _lines(MEMINFO, ":")}
    host_memory = MachineMemory(fields["MemTotal"], fields["MemAvailable"])
    limit = _read(CONTAINER / "memory.max")
    if limit in ("", "max"):
        return host_memory
    cached_bytes = dict(_lines(CONTAINER / "memory.stat", " "))["inactive_file"]
    used_bytes = int(_read(CONTAINER / "memory.current")) - int(cached_bytes)
    return MachineMemory(min(host_memory.total, int(limit)), min(host_memory.free, max(int(limit) - used_bytes, 0)))


def _lines(path: Path, separator: str) -> list[tuple[str, str]]:
    partitions = (line.partition(separator) for line in path.read_text().splitlines())
    return [(name, value) for name, _, value in partitions if value.strip()]


def _read(path: Path) -> str:
    """The contents of a file of a container, empty if there is none."""
    return path.read_text().strip() if path.exists() else ""
