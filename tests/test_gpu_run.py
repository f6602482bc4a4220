"""The run on a GPU (`.ci/gpu.py`), with commands that need none: limits, failures, going on, and what it leaves."""

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from drafttree.interfaces import cli
from helpers.programs import program

ROOT = Path(__file__).parents[1]


@pytest.fixture
def gpu(monkeypatch):
    """The program, on a machine where nothing is missing."""
    runner = program(ROOT / ".ci" / "gpu.py")
    monkeypatch.setattr(runner, "why_not", lambda: None)
    monkeypatch.setattr(runner, "FEWEST_SECONDS", 0)
    monkeypatch.setattr(runner, "GRACE", 5)
    return runner


def part(runner, name: str, code: str, seconds: float = 60, **variables: str):
    return runner.Part(name, seconds, ("{python}", "-c", code), variables)


def test_a_part_that_fails_stops_no_other(gpu, tmp_path, capsys):
    parts = [
        part(gpu, "good", "import os; print(os.environ['WORD'])", WORD="kernels"),
        part(gpu, "bad", "print('so far'); raise SystemExit(7)"),
        gpu.Part("missing", 60, ("no-such-command",)),
        part(gpu, "last", "print('the end')"),
    ]
    assert gpu.main(["--out", str(tmp_path)], parts) == 1
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    outcomes = dict(line.split()[:2] for line in lines)
    assert outcomes == {"good": "done", "bad": "failed", "missing": "failed", "last": "done"}
    assert lines[0].endswith("  kernels")
    assert "failed (7)" in lines[1]
    assert "so far" in (tmp_path / "bad.txt").read_text()
    assert "the end" in (tmp_path / "last.txt").read_text()
    assert lines[1] in capsys.readouterr().out


def test_the_next_run_does_not_repeat_what_is_done(gpu, tmp_path):
    code = "print('x', end='', file=open({!r}, 'a'))"
    parts = [
        part(gpu, "good", code.format(str(tmp_path / "good.count"))),
        part(gpu, "bad", code.format(str(tmp_path / "bad.count")) + "; raise SystemExit(1)"),
    ]
    for _ in range(3):
        assert gpu.main(["--out", str(tmp_path / "out")], parts) == 1
    assert (tmp_path / "good.count").read_text() == "x"
    assert (tmp_path / "bad.count").read_text() == "xxx"
    assert gpu.main(["--out", str(tmp_path / "out"), "good"], parts) == 0


STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""
POLITE = """
import time
try:
    time.sleep(600)
except KeyboardInterrupt:
    print("what is finished", flush=True)
    raise SystemExit(130)
"""


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_a_part_ends_at_its_limit_with_its_children_and_shows_what_it_has(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "GRACE", 1)
    parts = [part(gpu, "polite", POLITE, 2), part(gpu, "stubborn", STUBBORN, 2)]
    started = time.monotonic()
    states = gpu.run_all(parts, tmp_path, 60)
    assert time.monotonic() - started < 30
    assert [state["outcome"] for state in states.values()] == ["out of time"] * 2
    assert "what is finished" in (tmp_path / "polite.txt").read_text()
    child = int((tmp_path / "stubborn.txt").read_text().split()[-1])
    while is_running(child):  # it may take a moment to die
        assert time.monotonic() - started < 60
        time.sleep(0.1)


def test_no_part_begins_after_the_limit_of_all(gpu, tmp_path):
    parts = [part(gpu, "long", "import time; time.sleep(600)"), part(gpu, "late", "print('late')")]
    states = gpu.run_all(parts, tmp_path, 6.5)  # of which 5 s are kept for what an interrupted part shows
    assert [state["outcome"] for state in states.values()] == ["out of time", "not begun"]
    assert not (tmp_path / "late.txt").exists()
    assert json.loads((tmp_path / "state.json").read_text()).keys() == {"long"}


def test_sources_of_the_clone_are_used_where_nothing_is_installed(gpu, tmp_path):
    """An interpreter without the packages of its environment finds the lab's commands."""
    code = (
        "from importlib.metadata import entry_points; import drafttree, drafttree_lab; print(drafttree.__file__); "
        "print(*sorted(entry_points(group='drafttree.commands').names))"
    )
    bare = gpu.Part("bare", 60, ("{python}", "-S", "-c", code))
    assert gpu.run_all([bare], tmp_path, 60)["bare"]["outcome"] == "done", (tmp_path / "bare.txt").read_text()
    *_, place, names = (tmp_path / "bare.txt").read_text().splitlines()
    assert place == str(ROOT / "src/drafttree/__init__.py")
    assert names == "bench replay support"


def test_without_a_gpu_one_line_says_why_nothing_was_run():
    command = [sys.executable, ROOT / ".ci/gpu.py"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.count("\n")) == (2, 1)
    assert "sees no CUDA device; nothing was run" in result.stdout


def test_commands_of_parts_are_known(gpu, capsys, monkeypatch):
    """Every command is parsed as far as it can be without a GPU: only the device is refused."""
    monkeypatch.chdir(ROOT)
    names = [each.name for each in gpu.PARTS]
    assert len(set(names)) == len(names)
    commands = {each.arguments[3:] for each in gpu.PARTS if "drafttree" in each.arguments}
    assert commands
    for command in commands:
        arguments = [text.format(out="unused") for text in command]
        with pytest.raises(SystemExit) as ended:
            cli.main(arguments)
        said = capsys.readouterr().err
        assert (ended.value.code, said.count("\n")) == (2, 1), shlex.join(arguments)
        assert "device 'cuda' is not available" in said or "torch sees no CUDA device" in said, shlex.join(arguments)


def test_tests_of_parts_exist(gpu):
    for each in gpu.PARTS:
        for argument in each.arguments:
            if argument.startswith(("tests", "lab/tests")):
                assert (ROOT / argument).exists()
