"""The memory of a machine and of a container, from files such as Linux has, and a heap that is not collected."""

import gc
import os

import pytest

from drafttree.core import machine_memory as module
from drafttree.core.machine_memory import MachineMemory, frozen_heap, machine_memory

MEMINFO = "MemTotal:       8000 kB\nMemFree:         100 kB\nMemAvailable:   5000 kB\nHugePages_Total:       0\n"


@pytest.fixture
def files(monkeypatch, tmp_path):
    """Writes the files of a machine, and of a container if its limit is given."""
    monkeypatch.setattr(module, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "CONTAINER", tmp_path)

    def write(limit: str = "", used: int = 0, cached: int = 0) -> None:
        (tmp_path / "meminfo").write_text(MEMINFO)
        if limit:
            (tmp_path / "memory.max").write_text(f"{limit}\n")
            (tmp_path / "memory.current").write_text(f"{used}\n")
            (tmp_path / "memory.stat").write_text(f"anon 7\ninactive_file {cached}\n")

    return write


@pytest.mark.parametrize("limit", ["", "max"])
def test_without_a_limit_it_is_the_machines(limit, files):
    files(limit)
    assert machine_memory() == MachineMemory(8000 * 1024, 5000 * 1024)


def test_a_container_has_its_limit_and_its_cache_can_be_had(files):
    files("3000000", used=2500000, cached=1000000)
    assert machine_memory() == MachineMemory(3000000, 1500000)
    files("3000000", used=3500000)
    assert machine_memory() == MachineMemory(3000000, 0)
    files(str(1 << 60), used=5)
    assert machine_memory() == MachineMemory(8000 * 1024, 5000 * 1024)


def test_elsewhere_all_of_it_counts_as_free(files, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert machine_memory() == MachineMemory(40960, 40960)
    monkeypatch.delattr(os, "sysconf")
    assert machine_memory() is None


def test_what_was_there_before_is_left_out_until_the_end():
    counts, present = [gc.get_freeze_count()], [[place] for place in range(2000)]

    def serve():
        with frozen_heap():
            counts.append(gc.get_freeze_count())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve()
    assert counts[1] > counts[0] + len(present) / 2
    assert gc.get_freeze_count() == 0
