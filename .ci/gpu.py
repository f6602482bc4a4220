"""What is to be tried on a GPU, in one run of at most ten minutes: `python .ci/gpu.py`, or `make gpu`.

    python .ci/gpu.py                     all parts, the most important first
    python .ci/gpu.py kernels rounds      some of them
    python .ci/gpu.py --minutes 5 --out FOLDER

Each part is a process of its own with a limit of its own, and prints to a file of its own in the folder (`$OUT`, or
build/gpu). One that fails stops no other. What is finished is not run again: the next run goes on with the rest, and
benches go on with what they kept. The sources of this clone are used, installed or not. The interpreter needs a torch
with CUDA, which brings Triton, and what drafttree, its lab and its tests need: the run says what is missing.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
STATE = "state.json"
GRACE = 15
"""Seconds in which a part that is interrupted shows what it has."""
FEWEST_SECONDS = 10
"""A part is not begun with less."""
NEEDED = ("numpy", "scipy", "transformers", "safetensors", "typer", "rich", "pydantic", "httpx", "pytest", "hypothesis")
"""Modules beside torch and Triton without which parts fail."""
DONE, OUT_OF_TIME, FAILED, NOT_BEGUN = "done", "out of time", "failed", "not begun"
FACTS = """
import platform, sys, torch
print("Python", platform.python_version(), "torch", torch.__version__, "CUDA", torch.version.cuda)
device = torch.cuda.get_device_properties(0)
print(device)
print("L2", device.L2_cache_size >> 20, "MiB; capability", torch.cuda.get_device_capability(0))
import triton
print("Triton", triton.__version__)
import transformers
print("transformers", transformers.__version__)
"""


class Part(NamedTuple):
    """A part of the run.

    Attributes:
        name: its name, and that of its file.
        seconds: the longest it may take.
        arguments: the command; "{python}" and "{out}" stand for the interpreter and the part's folder.
        variables: variables of its environment.
    """

    name: str
    seconds: int
    arguments: tuple[str, ...]
    variables: Mapping[str, str] = {}


def drafttree(name: str, seconds: int, arguments: str, *, triton: bool = False) -> Part:
    """A part that is a command of drafttree, perhaps on the kernels in Triton."""
    command = ("{python}", "-m", "drafttree", *arguments.split())
    return Part(name, seconds, command, {"DRAFTTREE_TRITON": "1" if triton else "0"})


METHODS = (
    "bench methods --inflate llama-8b --device cuda --drafter mixed:embedded-eagle3 --limit 2 --repeats 2 "
    "--policies chain:depth=5;talon:budget=16,width=4;auto --passes 1,4,16,64 --out {out}"
)
BATCH = (
    "bench batch --inflate llama-8b --device cuda --batches 1,4,16 --repeats 1 --limit 16 --max-new-tokens 96 "
    "--no-one-by-one --budgets 2,4 --out {out}"
)
TEXTS = (
    "certify --device cuda --prompts src/drafttree/measure/data/prompts/mt_bench.jsonl --limit 4 --max-new-tokens 64 "
    "--policies chain;talon:budget=16,width=4"
)
PYTEST = ("{python}", "-m", "pytest", "-m", "cuda", "--durations", "5")
PARTS = [
    Part("device", 30, ("nvidia-smi",)),
    Part("versions", 60, ("{python}", "-c", FACTS)),
    Part("kernel-tests", 150, (*PYTEST, "tests/models/triton", "lab/tests/bench/test_kernels.py")),
    drafttree("kernels", 120, "bench kernels --repeats 3 --out {out}"),
    drafttree("texts-float32", 60, f"{TEXTS} --dtype float32", triton=True),
    drafttree("methods-triton", 90, METHODS, triton=True),
    drafttree("methods-torch", 90, METHODS),
    drafttree("batch-triton", 70, BATCH, triton=True),
    drafttree("batch-torch", 70, BATCH),
    drafttree("texts-bfloat16", 45, f"{TEXTS} --dtype bfloat16 --exact-text", triton=True),
    drafttree("methods-int8", 60, f"{METHODS} --quantize int8", triton=True),
    Part("other-tests", 120, (*PYTEST, "--ignore", "tests/models/triton", "tests")),
]


def why_not() -> str | None:
    """Why nothing can be run by this interpreter, with what to do; None if all can."""
    if find_spec("torch") is None:
        return "torch is not installed: pip install torch (PyPI's wheels for Linux bring CUDA and Triton)"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device; nothing was run"
    if missing := [name for name in ("triton", *NEEDED) if find_spec(name) is None]:
        return f"not installed: pip install {' '.join(missing)}"
    return None


def environment_of(part: Part, out: Path) -> dict[str, str]:
    """The environment of a part, in which the sources of this clone are imported, and the lab's commands are found."""
    lab = tomllib.loads((ROOT / "lab/pyproject.toml").read_text())["project"]
    metadata = out / "metadata" / f"drafttree_lab-{lab['version']}.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {lab['name']}\nVersion: {lab['version']}\n")
    commands = "".join(f"{name} = {place}\n" for name, place in lab["entry-points"]["drafttree.commands"].items())
    (metadata / "entry_points.txt").write_text(f"[drafttree.commands]\n{commands}")
    places = [ROOT / "src", ROOT / "lab/src", metadata.parent, os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(str(place) for place in places if place), **part.variables}


def run_part(part: Part, out: Path, seconds: float) -> dict[str, Any]:
    """Run a part for at most so many seconds; its output is appended to its file.

    Returns:
        `outcome`, the exit `code`, `seconds` and the `command`.
    """
    command = [text.format(python=sys.executable, out=out / part.name) for text in part.arguments]
    started = time.monotonic()
    with (out / f"{part.name}.txt").open("a") as output:
        print("$", *command, file=output, flush=True)
        options: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": ROOT}
        try:
            process = subprocess.Popen(command, env=environment_of(part, out), start_new_session=True, **options)
        except OSError as error:
            print(error, file=output)
            return {"outcome": FAILED, "code": str(error), "seconds": 0.0, "command": command}
        try:
            is_late = not _ends_within(process, seconds)
            if is_late:
                os.killpg(process.pid, signal.SIGINT)
                _ends_within(process, GRACE)
        finally:  # also after Ctrl-C, which processes of another session do not get
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    outcome = OUT_OF_TIME if is_late else DONE if process.returncode == 0 else FAILED
    taken = round(time.monotonic() - started, 1)
    return {"outcome": outcome, "code": process.returncode, "seconds": taken, "command": command}


def _ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def run_all(parts: Sequence[Part], out: Path, seconds: float) -> dict[str, dict[str, Any]]:
    """Run the parts that are not done, while there is time; return the state of each by name."""
    out.mkdir(parents=True, exist_ok=True)
    state_file = out / STATE
    states: dict[str, Any] = json.loads(state_file.read_text()) if state_file.exists() else {}
    deadline = time.monotonic() + seconds
    for part in parts:
        if states.get(part.name, {}).get("outcome") == DONE:
            continue
        left = deadline - time.monotonic() - GRACE
        if left < FEWEST_SECONDS:
            break
        print(f"{part.name} ...", end=" ", flush=True)
        states[part.name] = run_part(part, out, min(part.seconds, left))
        print(f"{states[part.name]['outcome']}, {states[part.name]['seconds']:.0f} s", flush=True)
        unfinished_file = state_file.with_suffix(".new")
        unfinished_file.write_text(json.dumps(states, indent=2))
        unfinished_file.replace(state_file)
    return {part.name: states.get(part.name, {"outcome": NOT_BEGUN}) for part in parts}


def summary(states: Mapping[str, Mapping[str, Any]], out: Path) -> str:
    """A line for each part: what came of it, in how many seconds, and the last line of its file."""
    lines = []
    for name, state in states.items():
        file = out / f"{name}.txt"
        printed = file.read_text(errors="replace").strip().splitlines() if file.exists() else []
        code = f" ({state['code']})" if state["outcome"] == FAILED else ""
        seconds = f"{state['seconds']:.0f} s" if "seconds" in state else ""
        lines.append(
            f"{name:16}{state['outcome'] + code:14}{seconds:>6}  {printed[-1][:90] if printed else ''}".rstrip()
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    parser = argparse.ArgumentParser(description="What is to be tried on a GPU, in one run.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(part.name for part in parts))
    parser.add_argument("--minutes", type=float, default=10.0, help="time for all parts together")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/gpu")), help="folder of results")
    options = parser.parse_args(arguments)
    names = [part.name for part in parts]
    if unknown := [name for name in options.parts if name not in names]:
        parser.error(f"unknown: {', '.join(unknown)}; the parts are {', '.join(names)}")
    if reason := why_not():
        print(f"make gpu: {reason}")
        return 2
    out = options.out.resolve()
    chosen_parts = [part for part in parts if part.name in (options.parts or names)]
    states = run_all(chosen_parts, out, 60 * options.minutes)
    table = summary(states, out)
    (out / "summary.txt").write_text(f"{table}\n")
    print(f"\n{table}\n\nmore in {out}; the next run goes on with what is not done")
    return 0 if all(state["outcome"] == DONE for state in states.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
