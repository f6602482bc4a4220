"""Measure the figures of performance.md, real-models.md and the README, and keep them in figures.json.

`make figures` runs the benches below that this machine can run, one after the other, and then writes the pages. The
others stay as they were measured: each entry has its command, date and machine. `make figures NAMES="batch serve"`
runs these alone. What a bench has finished is in build/figures, from which the same command goes on.
"""

import datetime
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from drafttree_lab.bench.real import describe_machine

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures.json"
RUNS = ROOT / "build" / "figures"
REAL_MODELS = "DRAFTTREE_REAL_MODELS"
MODEL = "qwen-coder-1.5b.gguf"
"""The real model whose passes and loading are timed."""
PEERS = {"llama.cpp": "llama_cpp", "transformers": "transformers"}
VERSIONS = ("drafttree", "drafttree-native", "torch", "transformers", "llama-cpp-python")
DRAFTERS = (
    "embedded-draft",
    "embedded-eagle3",
    "embedded-mtp",
    "embedded-block",
    "embedded-hydra",
    "embedded-medusa",
    "lookup",
    "mixed:embedded-eagle3",
    "mixed:embedded-mtp",
)


class Bench(NamedTuple):
    """A measurement.

    Attributes:
        arguments: of `drafttree bench`. `MODELS/` stands for the folder of real models.
        peers: programs to compare with, if they are installed.
        device: where it runs.
    """

    arguments: str
    peers: tuple[str, ...] = ()
    device: str = "cpu"

    def missing(self) -> str:
        """What this machine lacks for it; "" if nothing."""
        if self.device == "cuda" and not torch.cuda.is_available():
            return "no CUDA device"
        needs_models = "MODELS/" in self.arguments or self.arguments.startswith("real")
        if needs_models and not os.environ.get(REAL_MODELS):
            return f"{REAL_MODELS} is not set"
        return ""

    def command(self) -> str:
        """The command as it is shown."""
        peers = [peer for peer in self.peers if importlib.util.find_spec(PEERS[peer])]
        return f"drafttree bench {self.arguments}" + (f" --peers {','.join(peers)}" if peers else "")


def pass_times(dtype: str) -> Bench:
    """A bench whose passes are of interest: its texts are as short as they may be."""
    method = "--limit 1 --repeats 1 --max-new-tokens 8 --drafter lookup --policies chain"
    return Bench(f"methods --inflate 300m {dtype} {method} --passes 1,4,8,16,32,64", ("llama.cpp",))


BENCHES = {
    "methods": Bench(
        f"methods --inflate 300m --dtype bfloat16 --limit 8 --max-new-tokens 96 --repeats 1 "
        f'--drafters "{";".join(DRAFTERS)}" --policies "chain;talon:budget=16,width=4;dynatree;auto"',
        ("transformers", "llama.cpp"),
    ),
    "sampled": Bench(
        "methods --inflate 300m --dtype bfloat16 --temperature 0.8 --limit 8 --max-new-tokens 96 --repeats 1 "
        '--drafters "embedded-draft;embedded-eagle3;mixed:embedded-eagle3" --policies "chain;dynatree;auto"',
    ),
    "passes-float32": pass_times("--dtype float32"),
    "passes-bfloat16": pass_times("--dtype bfloat16"),
    "passes-int8": pass_times("--dtype bfloat16 --quantize int8"),
    "contexts": Bench(
        f"methods --target MODELS/{MODEL} --limit 1 --repeats 1 --max-new-tokens 8 --drafter lookup --policies chain "
        "--passes 1,4,16,64 --contexts 256,2048,8000,32000 --reading 1000,4000",
        ("llama.cpp",),
    ),
    "batch": Bench(
        "batch --inflate 300m --dtype bfloat16 --drafter mixed:embedded-eagle3 --batches 1,2,4,8,16 --budgets 1,2,4 "
        "--repeats 4 --minutes 9"
    ),
    "serve": Bench("serve --repeats 5"),
    "loading": Bench(f"loading MODELS/qwen-coder-0.5b.gguf MODELS/{MODEL} --dtype bfloat16", ("llama.cpp",)),
    "real": Bench("real"),
    "gpu": Bench(
        "methods --inflate llama-8b --device cuda --drafter mixed:embedded-eagle3 --limit 4 --repeats 3 "
        '--policies "chain:depth=5;talon:budget=16,width=4;talon:budget=60;auto" --passes 1,4,16,64,128',
        ("transformers",),
        device="cuda",
    ),
}
"""Measurements by name, in the order in which they run."""


def entries() -> dict[str, Any]:
    """What was measured, by name: command, date, machine, versions and the report of the bench."""
    return json.loads(FIGURES.read_text()) if FIGURES.exists() else {}


def measure(names: Iterable[str]) -> None:
    """Run benches and keep their reports; one that this machine cannot run is told, and its entry stays."""
    names = list(names)
    if unknown_names := [name for name in names if name not in BENCHES]:
        raise SystemExit(f"unknown: {', '.join(unknown_names)}; known: {', '.join(BENCHES)}")
    for name in names:
        bench = BENCHES[name]
        if reason := bench.missing():
            print(f"{name}: not run, {reason}")
            continue
        print(f"{name}: {bench.command()}", flush=True)
        kept = entries() | {name: _entry(name, bench)}
        FIGURES.write_text(json.dumps({each: kept[each] for each in BENCHES if each in kept}, indent=1) + "\n")


def _entry(name: str, bench: Bench) -> dict[str, Any]:
    command = bench.command()
    models = os.environ.get(REAL_MODELS, "")
    arguments = shlex.split(command.replace("MODELS/", f"{models}/"))[1:]
    if not bench.arguments.startswith("serve"):
        arguments += ["--out", str(RUNS / name)]
    program = [sys.executable, "-m", "drafttree", *arguments, "--json"]
    finished = subprocess.run(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if finished.returncode:
        raise SystemExit(f"{name} ended with {finished.returncode}: {shlex.join(program)}")
    report = json.loads(finished.stdout)
    if bench.arguments.startswith("methods"):
        del report["texts"]  # every round of every text
    return {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "versions": _versions(),
        "report": _rounded(report),
    }


def _versions() -> dict[str, str]:
    numbers = {}
    for package in VERSIONS:
        try:
            numbers[package] = version(package)
        except PackageNotFoundError:
            continue
    return numbers


def _rounded(value: Any) -> Any:
    """A report with numbers of five digits, which is more than a time has."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return value


if __name__ == "__main__":
    measure(sys.argv[1:] or BENCHES)
