"""Compiles Triton's kernels for GPUs that are not there, instead of launching them.

Tests run it in a process of its own, since the interpreter and the compiler exclude each other.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

MOST_SHARED_MEMORY = {80: 163 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have, by compute capability: A100, RTX 4090, H200."""
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class CompiledKernel(NamedTuple):
    """What a launch was compiled to.

    Attributes:
        name: name of the kernel.
        capability: compute capability of the GPU.
        shared: bytes of shared memory.
        products: the kinds of matrix instructions.
        registers: registers of a thread.
        stack: bytes of a thread's stack, which hold what does not fit in registers.
        ptx: the code.
    """

    name: str
    capability: int
    shared: int
    products: frozenset[str]
    registers: int
    stack: int
    ptx: str

    @property
    def has_loads_ahead(self) -> bool:
        """Whether tiles are loaded while earlier ones are computed."""
        return "cp.async.c" in self.ptx


@contextmanager
def compiled_launches(capability: int) -> Iterator[list[CompiledKernel]]:
    """Context manager: launches compile their kernel for a GPU, and the list gets what they made."""
    launches = list[CompiledKernel]()
    original_run = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        launches.append(_describe(original_run(self, *args, grid=grid, warmup=True, **kwargs), capability))

    driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: capability,  # kernels are cached by device
            get_current_stream=lambda device: 0,
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
            utils=SimpleNamespace(get_device_properties=lambda _: {"max_shared_mem": MOST_SHARED_MEMORY[capability]}),
        )
    )
    JITFunction.run = run
    try:
        yield launches
    finally:
        JITFunction.run = original_run


def launches_of(capability: int, call: Callable[[], object]) -> list[CompiledKernel]:
    """What the launches of a call are compiled to."""
    with compiled_launches(capability) as launches:
        call()
    return launches


def _describe(kernel: Any, capability: int) -> CompiledKernel:
    ptx = kernel.asm["ptx"]
    products = re.findall(r"((?:wgmma\.mma_async|mma)\.sync\.aligned\.\S+)", ptx)
    with TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        usage = subprocess.run([CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # pyright: ignore[reportOptionalMemberAccess]
    metadata = kernel.metadata
    return CompiledKernel(
        metadata.name, capability, metadata.shared, frozenset(products), int(registers), int(stack), ptx
    )
