"""The peak memory of methods, each measured in a process of its own.

A process's peak never falls, so in a shared process only the largest method's peak would be seen.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Device, Dtype, Target, VerifierName
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree.loading import find_verifier
from drafttree.measure.method import NO_DRAFTER, Method, parse_methods
from drafttree_lab.options import DrawOptions, PromptOptions, TargetOptions
from drafttree_lab.own_process import answer, run_module

if TYPE_CHECKING:
    from drafttree.measure.driver import Cell

METHODS = "embedded-draft;lookup;mixed:embedded-draft"
COLUMNS = {"method": "", **dict.fromkeys(("loaded", "peak", "added", "GPU loaded", "GPU peak", "GPU added"), ".1f")}
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Value for /proc/self/clear_refs that resets the peak of resident memory (proc(5))."""
Use = dict[str, int]
"""Memory in bytes, and the number of `tokens`.

`loaded` is the resident memory after loading, and `peak` the peak while decoding; outside Linux, loading is included.
`device_loaded` and `device_peak` are those of the GPU, 0 without one.
"""


@grouped
def bench(
    context: typer.Context,
    draws: DrawOptions,
    results: ResultOptions,
    prompts: PromptOptions = PromptOptions(limit=2),
    methods: Annotated[
        list[str] | None,
        typer.Option(help='"DRAFTER|POLICY|VERIFIER;..." (the last two optional). May be repeated.'),
    ] = None,
    target: Target = "embedded",
    verifier: VerifierName = "auto",
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Measure the peak memory of methods, each in its own process."""
    specs = [NO_DRAFTER, *parse_specs(methods or [METHODS], verifier)]
    texts = prompts.token_ids(TargetOptions(target, dtype, device).load(), draws.max_new_tokens)
    task = {"target": target, "dtype": dtype, "device": device, "prompts": texts, "options": asdict(draws)}
    store = results.open_store(context, texts)
    ways = {spec: partial(measure_memory, spec) for spec in specs}
    with progress(len(specs)) as advance:
        cells = measure.race(ways, [("all", task)], Use, store=store, progress=advance)
    rows = list(map(_row, cells))
    results.finish(
        store, {"rows": rows}, lambda: make_console().print(measure.to_table("MB", map(_in_mb, rows), COLUMNS))
    )


def parse_specs(methods: Sequence[str], verifier: str) -> list[str]:
    """The specifications of methods; those that name no verifier get the given one.

    Raises:
        ConfigError: a method is unknown, or its policy and verifier are not lossless together.
    """
    from drafttree.engine import compatibility

    judge = find_verifier(verifier)
    specs: list[str] = []
    for method in parse_methods(methods).values():
        judged_method = replace(method, verifier=method.verifier or judge)
        if judged_method.verifier:
            compatibility.check(method.policy, judged_method.verifier)
        if method.drafter:
            specs.append(judged_method.spec)
    return specs


def _row(cell: "Cell") -> dict[str, Any]:
    """The memory of a method, and what decoding added to it."""
    use: Use = cell.result
    growth = {"added": use["peak"] - use["loaded"], "device_added": use["device_peak"] - use["device_loaded"]}
    return {"method": cell.way, **use, **growth}


def _in_mb(row: Mapping[str, Any]) -> dict[str, Any]:
    names = {name: name.replace("GPU ", "device_") for name in COLUMNS if name != "method"}
    megabytes = {name: row[key] / 1e6 for name, key in names.items() if row["device_peak"] or name == key}
    return {"method": row["method"], **megabytes}


def measure_memory(spec: str, task: Mapping[str, Any]) -> Use:
    """Measure one method in a fresh process.

    Args:
        spec: the method's specification, "none" for plain decoding.
        task: `target`, `dtype` and `device` as for `drafttree.load`, `prompts` as token ids, and `options` as for
            `Decoder.generate`.

    Raises:
        ConfigError: the method, its drafter or an option is refused.
        ModelError: the process died, for example because memory ran out.
    """
    return run_module(__name__, {**task, "method": spec}, spec)


def decode(task: Mapping[str, Any]) -> Use:
    """Load a method's models and decode, and measure the memory of this process."""
    from drafttree.loading.load import load

    method = Method.parse(task["method"])
    arguments = (method.drafter or NO_DRAFTER, method.policy, method.verifier)
    decoder = load(task["target"], *arguments, dtype=task["dtype"], device=task["device"])
    gc.collect()
    loaded_memory = resident("VmRSS")
    device_memory = _on_device(torch.cuda.memory_allocated)
    reset_peak()
    _on_device(torch.cuda.reset_peak_memory_stats)
    tokens = sum(len(decoder.generate(prompt, **task["options"]).tokens) for prompt in task["prompts"])
    return {
        "loaded": loaded_memory,
        "peak": max(loaded_memory, resident("VmHWM")),  # memory may be given back between the reading and the reset
        "device_loaded": device_memory,
        "device_peak": _on_device(torch.cuda.max_memory_allocated),
        "tokens": tokens,
    }


def reset_peak() -> None:
    """Reset the peak of resident memory, if the system can."""
    with suppress(OSError):
        CLEAR.write_text(RESET_PEAK)


def resident(field: str) -> int:
    """Bytes of resident memory: "VmRSS" is the current value, "VmHWM" the peak; outside Linux both give the peak.

    On Linux `getrusage` is of no use, since a process inherits its peak from the parent.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        from drafttree.engine.metrics import peak_memory

        return peak_memory()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _on_device(function: Callable[[], int | None]) -> int:
    """The result of a function about GPU memory; 0 without a GPU."""
    return (function() or 0) if torch.cuda.is_available() and torch.cuda.is_initialized() else 0


if __name__ == "__main__":
    answer(decode)
