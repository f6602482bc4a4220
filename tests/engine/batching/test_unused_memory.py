"""Memory that the allocator keeps goes back to the system when an engine has nothing to do."""

import ctypes
import subprocess
import sys
import threading

import pytest

from drafttree.engine.batching import Engine
from testing.costs import toy_decoder
from testing.small_trees import TARGET
from testing.toy import ToyModel

GIVEN_BACK = """
from drafttree.core.machine_memory import release_unused_memory

def resident_bytes():
    with open("/proc/self/statm") as numbers:
        return int(numbers.read().split()[1]) * 4096

kept = []
for _ in range(2000):
    block = bytearray(64 << 10)
    block[::4096] = bytes([1]) * len(block[::4096])
    kept.append((block, bytearray(600)))  # the small one is in use behind every block that is freed
small = [each for _, each in kept]
del kept, block
before = resident_bytes()
release_unused_memory()
print(before - resident_bytes(), len(small))
"""
"""Frees 125 MiB, in a process of its own, whose allocator has no holes from other work."""

ARENAS = """
import ctypes, threading
from drafttree.core.machine_memory import share_arenas

{}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
held = threading.Barrier(7)
threads = [threading.Thread(target=lambda: (libc.malloc(600), held.wait())) for _ in range(6)]
[each.start() for each in threads]
held.wait()
libc.malloc_info(0, ctypes.c_void_p.in_dll(libc, "stdout"))
libc.fflush(None)
"""
"""Prints glibc's account of a process in which six threads have allocated."""

glibc_only = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")), reason="the allocator is not glibc's"
)


@pytest.mark.few(1)
@glibc_only
@pytest.mark.parametrize("call", ["", "share_arenas()"])
def test_threads_share_two_arenas(call):
    done = subprocess.run([sys.executable, "-c", ARENAS.format(call)], capture_output=True, text=True, check=True)
    assert (done.stdout.count("<heap nr=") <= 2) == bool(call)


@pytest.mark.slow
@glibc_only
def test_freed_memory_before_memory_in_use_goes_back():
    done = subprocess.run([sys.executable, "-c", GIVEN_BACK], capture_output=True, text=True, check=True, timeout=300)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 62 << 20
    assert kept == 2000


def test_an_idle_engine_gives_memory_back_once(monkeypatch):
    calls, called = [], threading.Event()
    monkeypatch.setattr("drafttree.engine.batching.engine.IDLE_SECONDS", 0.01)
    monkeypatch.setattr("drafttree.engine.batching.engine.release_unused_memory", lambda: calls.append(called.set()))
    with Engine(toy_decoder(ToyModel(TARGET))) as engine:
        for number in range(1, 4):
            assert called.wait(20)
            called.clear()
            assert not called.wait(0.1)
            assert len(calls) == number
            engine.submit([1], max_new_tokens=2).result(20)


def test_a_busy_engine_gives_memory_back_too(monkeypatch):
    called = threading.Event()
    monkeypatch.setattr("drafttree.engine.batching.engine.BUSY_SECONDS", 0.0)
    monkeypatch.setattr("drafttree.engine.batching.engine.release_unused_memory", called.set)
    with Engine(toy_decoder(ToyModel(TARGET))) as engine:
        text = engine.submit([1], max_new_tokens=10**6)
        assert called.wait(20)
        assert not text.done
        text.cancel()
