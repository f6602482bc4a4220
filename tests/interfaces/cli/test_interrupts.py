"""Ctrl-C, as the terminal sends it, to a command in a process of its own."""

import json
import signal
import subprocess
import sys
import time

import pytest

from drafttree.measure.run_store import RUNS
from testing.command_line import PROMPT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a child")]
PATIENCE = 900
DRAFTTREE = ["-m", "drafttree"]


@pytest.fixture
def start():
    """Starts a process of Python with these arguments; a test that fails leaves none behind."""
    processes = []

    def start(*arguments):
        command = [sys.executable, *map(str, arguments)]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


def interrupted(process):
    """What a process prints after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return out, err


def wait_for_runs(path, count):
    """Wait until so many runs are kept."""
    ends = time.monotonic() + PATIENCE
    while not path.exists() or len(path.read_text().splitlines()) < count:
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_generate_ends_with_what_it_has_written(start):
    process = start(*DRAFTTREE, "generate", PROMPT, "--max-new-tokens", 1900, "--ignore-eos")
    assert process.stdout is not None
    begun = process.stdout.read(5)
    out, err = interrupted(process)
    assert begun + out == f"{(begun + out).rstrip()}\n"
    assert "tokens per target pass (interrupted)" in err


def test_a_loop_over_prompts_in_python_stops(start):
    program = (
        "import drafttree\n"
        "decoder = drafttree.load()\n"
        "for number in range(1000):\n"
        "    print(number, flush=True)\n"
        "    decoder.generate('Once upon a time', max_new_tokens=300, ignore_eos=True)\n"
    )
    process = start("-c", program)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert len(out.splitlines()) < 20


@pytest.mark.parametrize("name", ["bench", "certify"])
def test_what_is_finished_is_printed_and_kept(name, tmp_path, start):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    prompts.write_text(f"{PROMPT}\nOnce upon a time\nIn the beginning\n")
    shared = ["--policies", "chain;talon", "--prompts", prompts, "--max-new-tokens", 60, "--out", out]
    command = [*(["bench", "methods", "--repeats", 2] if name == "bench" else [name]), *shared, "--dtype", "float32"]
    process = start(*DRAFTTREE, *command)
    wait_for_runs(out / RUNS, 5)
    shown, err = interrupted(process)
    assert "talon" in shown
    assert "Certified" not in shown
    assert f"the same command continues from {out}" in err
    kept = (out / RUNS).read_text().splitlines()
    process = start(*DRAFTTREE, *command, "--json")
    report = json.loads(process.communicate(timeout=PATIENCE)[0])
    assert process.returncode == 0
    runs = (out / RUNS).read_text().splitlines()
    assert len(kept) < len(runs) == (18 if name == "bench" else 12)
    assert runs[: len(kept)] == kept
    assert report["prompts"] == 3 if name == "bench" else report["passed"]
    process = start(*DRAFTTREE, *command, "--limit", 2)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "holds the runs of another command (limit = 'None' there, '2' here)" in err


def killed(process, path, count):
    """Kill a process when so many runs are kept."""
    wait_for_runs(path, count)
    process.kill()
    process.communicate(timeout=PATIENCE)


def test_a_replay_that_was_killed_twice_ends_with_the_counts_of_one_that_was_not(tmp_path, start):
    command = [*DRAFTTREE, "replay", "talon/1", "--limit", 1, "--max-new-tokens", 16, "--counts-only", "--out"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for count in (3, 11):
        killed(start(*command, cut), cut / RUNS, count)
    interrupted_at = start(*command, cut)
    wait_for_runs(cut / RUNS, 17)
    _, err = interrupted(interrupted_at)
    assert f"the same command continues from {cut}" in err
    for folder in (whole, cut):
        process = start(*command, folder)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
    first, second = (sorted((folder / RUNS).read_text().splitlines()) for folder in (whole, cut))
    assert first == second
    assert len(first) > 20
