"""The memory that ways of decoding need at most, each measured in a process of its own.

A process's high-water mark never falls, so that of one which has run several methods is the largest one's.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from drafttree.core.errors import ConfigError, ModelError
from drafttree.engine import compatibility
from drafttree.measure.method import NO_DRAFTER, Method, parse_methods
from drafttree.measure.run_store import RunStore
from drafttree_lab.experiment.cells import Key, run_cells

PROCESS = "drafttree_lab.experiment.memory_process"
REFUSED = "refused"
"""The key under which the process tells why it could not do its work."""


@dataclass(frozen=True)
class MemorySetting:
    """What every method decodes.

    Attributes:
        target: name, as `dtype` and `device` as for `drafttree.load`.
        dtype: the dtype of the weights.
        device: the device where the models run.
        prompts: token ids.
        options: as for `Decoder.generate`.
    """

    target: str
    dtype: str
    device: str
    prompts: Sequence[Sequence[int]]
    options: dict[str, Any]


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a process that decodes.

    Attributes:
        loaded: resident once the models are loaded.
        peak: resident at most while decoding; where the system is not Linux, loading included.
        device_loaded: the same on the GPU, 0 where none is in use.
        device_peak: bytes on the GPU at most while decoding, 0 where none is in use.
        tokens: committed.
    """

    loaded: int
    peak: int
    device_loaded: int
    device_peak: int
    tokens: int

    @property
    def added(self) -> int:
        """Resident bytes that decoding adds to the loaded models at most."""
        return self.peak - self.loaded

    @property
    def device_added(self) -> int:
        """The same on the GPU."""
        return self.device_peak - self.device_loaded


@dataclass(frozen=True)
class MemoryBench:
    """What was measured by the methods' specifications, "none" for plain decoding."""

    uses: dict[str, MemoryUse]

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        rows = [
            {"method": spec, **asdict(use), "added": use.added, "device_added": use.device_added}
            for spec, use in self.uses.items()
        ]
        return {"rows": rows}


def bench_memory(
    setting: MemorySetting,
    methods: Iterable[str | Method],
    *,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
) -> MemoryBench:
    """Measure plain decoding and every method, one fresh process after the other.

    Args:
        setting: what they decode.
        methods: as for `parse_methods`.
        progress: called after every method with its specification.
        store: keeps finished runs; by default none.

    Raises:
        ConfigError: a method is refused: its names, its pair of policy and verifier, its drafter or the options.
        ModelError: a process has died, as of too little memory.
    """
    chosen = parse_methods([NO_DRAFTER, *methods])
    for method in chosen.values():
        if method.verifier:
            compatibility.check(method.policy, method.verifier)
    cells: dict[Key, Callable[[], MemoryUse]] = {(spec,): partial(measure_in_process, setting, spec) for spec in chosen}
    uses = run_cells(cells, MemoryUse, progress=progress, store=store)
    return MemoryBench({str(spec): use for (spec,), use in uses.items()})


def measure_in_process(setting: MemorySetting, spec: str) -> MemoryUse:
    """Measure one method in a fresh process; errors as for `bench_memory`."""
    task = json.dumps({"setting": asdict(setting), "method": spec})
    done = subprocess.run([sys.executable, "-m", PROCESS], input=task, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing; perhaps memory ran out"])[-1]
        raise ModelError(f"the process of {spec!r} has ended with code {done.returncode}: {last}")
    found = json.loads(done.stdout.splitlines()[-1])
    if REFUSED in found:
        raise ConfigError(f"{spec}: {found[REFUSED]}")
    return MemoryUse(**found)
