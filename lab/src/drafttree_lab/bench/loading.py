"""Time and memory from the start of loading to the first token, each model in a process of its own.

Memory is measured in two ways. Anonymous memory belongs to the process alone; that of the imports is subtracted.
Resident memory also includes pages of mapped files, which the system can take back.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from drafttree import measure
from drafttree.core.errors import ConfigError, unknown
from drafttree.core.stages import counted_stages
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Drafter, Dtype, split_names
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree_lab.bench.memory import resident
from drafttree_lab.own_process import answer, run_module
from drafttree_lab.peers.programs import LLAMA_CPP, check_installed, versions

BEGUN = time.perf_counter()
"""Time at which this process began its imports."""
STAGES = ("weights", "quantise", "pack", "check", "tokenizer", "other")
SECONDS = {"model": "", "precision": "", **dict.fromkeys(("imports", *STAGES, "loaded", "first token"), ".1f")}
MEMORY = {"model": "", **dict.fromkeys(("imports", "weights", "steady", "peak", "resident peak"), ".0f")}
MEMORY |= {"peak / weights": ".2f"}
PROMPT = "The first thing that happened was"
CONTEXT = 512
"""Context size of llama.cpp in tokens."""
INTERVAL = 0.002
"""Seconds between two samples of the anonymous memory."""


@grouped
def bench(
    context: typer.Context,
    results: ResultOptions,
    models: Annotated[list[str], typer.Argument(help="Folders, GGUF files, hub names or embedded names.")],
    dtype: Dtype = "auto",
    quantize: Annotated[
        list[str] | None, typer.Option(help='"int8" or "none"; by default as they are stored. May be repeated.')
    ] = None,
    drafter: Drafter = "none",
    peers: Annotated[str | None, typer.Option(help=f"Programs that load the same GGUF files: {LLAMA_CPP}.")] = None,
) -> None:
    """Measure what loading takes, in seconds and in memory."""
    programs = split_names(peers) if peers else []
    _check_programs(programs, models)
    tasks = [*make_tasks(models, dtype, quantize or [None], drafter), *make_peer_tasks(models, programs)]
    store = results.open_store(context, [], versions(programs))
    ways = {name: lambda _, task=task: measure_loading(task) for name, task in tasks}
    with progress(len(ways)) as advance:
        cells = measure.race(ways, [("all", None)], dict[str, Any], store=store, progress=advance)
    rows = [{"model": cell.way, **cell.result} for cell in cells]
    results.finish(store, {"rows": rows}, lambda: _show(rows))


def _check_programs(programs: Sequence[str], models: Sequence[str]) -> None:
    """Refuse programs that cannot load the models.

    Raises:
        ConfigError: a program is unknown or not installed, or a model is not a GGUF file.
    """
    if unknown_peer := next((name for name in programs if name != LLAMA_CPP), None):
        raise unknown("peer", unknown_peer, [LLAMA_CPP])
    check_installed(programs)
    if programs and (folder := next((model for model in models if not model.endswith(".gguf")), None)):
        raise ConfigError(
            f"{LLAMA_CPP} reads GGUF files, and {folder!r} is not one; leave out --peers, or give GGUF files"
        )


def make_tasks(
    models: Sequence[str], dtype: str, quantizations: Sequence[str | None], drafter: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tasks of loading every model in every precision, each with its label in the tables."""
    for model, quantization in product(models, quantizations):
        precision = dtype if quantization in (None, "none") else quantization
        task = {"target": model, "dtype": dtype, "quantize": quantization, "drafter": drafter}
        yield f"{_label(model, models)} {precision}", task


def make_peer_tasks(models: Sequence[str], programs: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tasks of loading every model by other programs, each with its label in the tables."""
    for model, peer in product(models, programs):
        yield f"{_label(model, models)} {peer}", {"target": model, "peer": peer}


def _label(model: str, models: Sequence[str]) -> str:
    """The last part of a model's path, if no other model has the same one."""
    names = list(map(attrgetter("name"), map(Path, models)))
    name = Path(model).name
    return name if names.count(name) == 1 else model


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    console = make_console()
    console.print(measure.to_table("seconds", map(_in_seconds, rows), SECONDS))
    console.print(measure.to_table("MB, but for those of the imports", map(_in_mb, rows), MEMORY))


def _in_seconds(row: Mapping[str, Any]) -> dict[str, Any]:
    stages = {name: row["stages"].get(name, 0.0) for name in STAGES}
    return {
        "model": row["model"],
        "precision": row["precision"],
        "imports": row["imports"],
        "loaded": row["loaded"],
        **stages,
        "first token": row["first_token"],
    }


def _in_mb(row: Mapping[str, Any]) -> dict[str, Any]:
    columns = ("imports", "weights", "steady", "peak", "resident peak")
    megabytes = {name: row[f"{name.replace(' ', '_')}_bytes"] / 1e6 for name in columns}
    return {"model": row["model"], **megabytes, "peak / weights": row["peak_bytes"] / row["weights_bytes"]}


def measure_loading(task: Mapping[str, Any]) -> dict[str, Any]:
    """Measure one model in a fresh process.

    Args:
        task: `target`, `dtype`, `quantize` and `drafter` as for `drafttree.load`; or `target` and the `peer` that loads
            it.

    Returns:
        In seconds: `imports`, `loaded`, `first_token`, and the `stages` of loading. In bytes of anonymous memory:
        `imports_bytes`, and beyond these `steady_bytes` and `peak_bytes`. Also `resident_peak_bytes`, `weights_bytes`
        and `precision`.

    Raises:
        ConfigError: the model is refused.
        ModelError: the process died, for example because memory ran out.
    """
    return run_module(__name__, task, task["target"])


def load_and_write(task: Mapping[str, Any]) -> dict[str, Any]:
    """Load a model and write one token, and measure the time and memory of this process."""
    return load_by_llama_cpp(task["target"]) if "peer" in task else load_by_drafttree(task)


def load_by_llama_cpp(path: str) -> dict[str, Any]:
    """Load a model in llama.cpp and write one token.

    It maps some weights and repacks others, so the bytes of weights are unknown.
    """
    import llama_cpp  # pyright: ignore[reportMissingImports]

    from drafttree_lab.peers.llama_cpp import LlamaCpp

    imports = time.perf_counter() - BEGUN
    imports_memory = resident("RssAnon")
    with watched_peak() as peak:
        started = time.perf_counter()
        program = LlamaCpp(Path(path), exact_cache=False, threads=os.cpu_count() or 1, eos=(), context=CONTEXT)
        load_seconds = time.perf_counter() - started
        program.generate(program.encode(PROMPT), 1)
        first_token = time.perf_counter() - started
    return {
        "imports": imports,
        "loaded": load_seconds,
        "first_token": first_token,
        "stages": {},
        "precision": f"the file's, llama-cpp-python {llama_cpp.__version__}",
        "weights_bytes": Path(path).stat().st_size,
        "imports_bytes": imports_memory,
        "steady_bytes": resident("RssAnon") - imports_memory,
        "peak_bytes": peak[0] - imports_memory,
        "resident_peak_bytes": resident("VmHWM"),
    }


def load_by_drafttree(task: Mapping[str, Any]) -> dict[str, Any]:
    """Load a model in drafttree and write one token, and measure the stages of loading."""
    from drafttree.loading.load import load

    imports = time.perf_counter() - BEGUN
    imports_memory = resident("RssAnon")
    with watched_peak() as peak:
        started = time.perf_counter()
        with counted_stages() as stages:
            decoder = load(**task)
        load_seconds = time.perf_counter() - started
        next(iter(decoder.stream(PROMPT, max_new_tokens=1)))
        first_token = time.perf_counter() - started
    target: Any = decoder.target
    return {
        "imports": imports,
        "loaded": load_seconds,
        "first_token": first_token,
        "stages": stages.seconds,
        "precision": target.precision,
        "runs_on": target.runs_on,
        "weights_bytes": target.nbytes + target.packed_nbytes,
        "imports_bytes": imports_memory,
        "steady_bytes": resident("RssAnon") - imports_memory,
        "peak_bytes": peak[0] - imports_memory,
        "resident_peak_bytes": resident("VmHWM"),
    }


@contextmanager
def watched_peak() -> Iterator[list[int]]:
    """Sample the peak of anonymous memory while the context lasts, since Linux does not record it."""
    peak = [resident("RssAnon")]
    stop_event = threading.Event()

    def watch() -> None:
        while not stop_event.wait(INTERVAL):
            peak[0] = max(peak[0], resident("RssAnon"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        stop_event.set()
        watcher.join()


if __name__ == "__main__":
    answer(load_and_write)
