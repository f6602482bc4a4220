"""Keeps idle threads of another thread's parallel regions from slowing the engine's down."""

import contextlib
import ctypes
from pathlib import Path

MAPS = Path("/proc/self/maps")
HARD = 2
"""`omp_pause_hard` of OpenMP 5.0: give up all threads."""


def release_idle_workers() -> None:
    """Let GNU OpenMP give up the worker threads of the calling thread; its next parallel region makes new ones.

    Every thread that has run an operation of torch keeps its workers. As soon as there are more of them than cores, GNU
    OpenMP lets all workers sleep between two operations instead of waiting a moment, and waking them takes longer than
    a small operation: rounds of 16 requests took 170 ms in a second thread, and 140 ms after the first one's workers
    were given up. Elsewhere than on Linux, and with other libraries, nothing is done.
    """
    with contextlib.suppress(OSError, AttributeError):
        lines = MAPS.read_text().splitlines()
        for library in {line.split()[-1] for line in lines if "libgomp" in line}:
            ctypes.CDLL(library).omp_pause_resource_all(HARD)
