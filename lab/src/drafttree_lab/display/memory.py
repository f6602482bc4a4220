"""Printing of `bench memory`."""

from drafttree.evaluation.method import NO_DRAFTER, PLAIN
from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.bench.memory import MemoryBench


def show_memory(result: MemoryBench) -> None:
    """Megabytes of every method, those of the GPU where one was in use."""
    on_device = any(use.device_peak for use in result.uses.values())
    names = ["loaded", "peak", "added", *(["GPU loaded", "GPU peak", "GPU added"] if on_device else [])]
    table = make_table("MB", *names, right=len(names))
    for spec, use in result.uses.items():
        sizes = [use.loaded, use.peak, use.added, use.device_loaded, use.device_peak, use.device_added]
        table.add_row(PLAIN if spec == NO_DRAFTER else spec, *(f"{size / 1e6:.1f}" for size in sizes[: len(names)]))
    make_console().print(table)
