"""The OpenMP library that torch runs its operations on: its worker threads, and how many it grants.

Only GNU OpenMP is handled, which torch's wheels for Linux bring; with others nothing is done.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

MAPS = Path("/proc/self/maps")
HARD = 2
"""`omp_pause_hard` of OpenMP 5.0: give up all threads."""


def openmp_libraries() -> list[str]:
    """The paths of the OpenMP libraries that are loaded, torch's first; empty if the system does not tell."""
    try:
        mapped_paths = {line.split(maxsplit=5)[-1].strip() for line in MAPS.read_text().splitlines()}
    except OSError:
        return []
    paths = [path for path in mapped_paths if re.search(r"/lib(g|i)?omp\d*[-.\w]*\.so", path)]
    return sorted(paths, key=lambda path: ("torch" not in path, path))


def release_idle_workers() -> None:
    """Let GNU OpenMP give up the worker threads of the calling thread; its next parallel region makes new ones.

    Every thread that has run an operation of torch keeps its workers. If there are more workers than cores, GNU OpenMP
    lets them sleep between two operations, and waking them takes longer than a small operation. In a second thread,
    rounds of 16 requests took 170 ms, and 140 ms once the first thread had given up its workers.

    A forked process has no workers. But there GNU OpenMP would wait forever for the workers of the thread that forked,
    even in torch's own operations. So they are given up before a fork.
    """
    for library in gnu_libraries():
        library.omp_pause_resource_all(HARD)


def limit_of_threads(threads: int) -> str | None:
    """The setting that lets GNU OpenMP give the calling thread fewer than `threads` threads, None if there is none."""
    for library in gnu_libraries():
        if library.omp_get_thread_limit() < threads:
            return f"OMP_THREAD_LIMIT={library.omp_get_thread_limit()}"
        if library.omp_get_max_active_levels() < 1:
            return "OMP_MAX_ACTIVE_LEVELS=0"
        if library.omp_get_dynamic():
            return "OMP_DYNAMIC=true"
    return None


@contextlib.contextmanager
def a_single_thread() -> Iterator[None]:
    """Context manager: GNU OpenMP gives the calling thread no workers, though torch still asks for them."""
    with contextlib.ExitStack() as undo:
        for library in gnu_libraries():
            undo.callback(library.omp_set_max_active_levels, library.omp_get_max_active_levels())
            library.omp_set_max_active_levels(0)
        yield


def gnu_libraries() -> Iterator[ctypes.CDLL]:
    """GNU's OpenMP libraries that are loaded and have OpenMP 5.0's functions."""
    for path in openmp_libraries():
        with contextlib.suppress(OSError):  # the file may have been replaced since it was loaded
            if "libgomp" in path and hasattr(library := ctypes.CDLL(path), "omp_pause_resource_all"):
                yield library


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=release_idle_workers)
