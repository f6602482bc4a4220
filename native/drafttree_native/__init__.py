"""CPU kernels for drafttree: a whole pass over trees of tokens in one call.

`Model` is that of the fastest build that this CPU runs; `variant` is its name. A pass reads texts as `PassText`, and of
each the KV cache as `CacheRows`. `cpu_flags()` says what the CPU has, by which the build is chosen. `use_openmp(path)`
lets passes run on the threads of an OpenMP library that is loaded already, as torch's is.
"""

import importlib
import platform
from pathlib import Path
from types import ModuleType

CALLS = 10
"""The version of what drafttree calls here; raised when a name, an argument or a meaning changes."""
VARIANTS = {
    "_amx": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "amx_tile", "amx_bf16", "amx_int8"},
    "_avx512_bf16": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"},
    "_avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "_avx2": {"avx2", "fma", "f16c", "bmi2"},
    "_portable": set[str](),
}
"""Builds, the fastest first, each with the flags of Linux for what a CPU must have."""


def cpu_flags() -> set[str]:
    """What this CPU has, as Linux says it; nothing is known elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")), set())


def load(flags: set[str]) -> ModuleType:
    """The fastest build for a CPU with these flags."""
    for name, needed in VARIANTS.items():
        if needed <= flags:
            try:
                found = importlib.import_module(f"{__name__}.{name}")
            except ModuleNotFoundError:
                continue
            if found.may_run():
                return found
    raise ImportError(f"drafttree-native was built for another kind of CPU than this {platform.machine()}")


_module = load(cpu_flags())
Model = _module.Model
PassText = _module.PassText
CacheRows = _module.CacheRows
panel: int = _module.panel
trim_heap = _module.trim_heap
use_openmp = _module.use_openmp
best_tokens = _module.best_tokens
variant = _module.__name__.rpartition(".")[2].removeprefix("_")
