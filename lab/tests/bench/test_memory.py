"""Peak memory: a process per method, what it measures, and what is refused."""

import io
import json
import subprocess
import sys

import pytest

from drafttree.errors import ModelError
from drafttree_lab.bench import memory
from drafttree_lab.own_process import answer
from testing.command_line import complaint, run

OPTIONS = {"max_new_tokens": 4, "temperature": 0.0, "seed": 0}
TASK = {"target": "embedded", "dtype": "float32", "device": "cpu", "prompts": [[5, 6, 7, 5, 6]], "options": OPTIONS}
USE = {"loaded": 100_000_000, "device_loaded": 0, "device_peak": 0, "tokens": 4}
LARGE = 200_000_000
PEAKS = f"""
from drafttree_lab.bench.memory import reset_peak, resident

reset_peak()
peaks = [resident("VmHWM")]
held = b"x" * {LARGE}
peaks += [resident("VmHWM")]
del held
peaks += [resident("VmHWM")]
reset_peak()
print([*peaks, resident("VmHWM")])
"""


@pytest.fixture
def processes(monkeypatch):
    """The methods a process was started for, and their tasks; none is started."""
    started = []

    def measure(spec, task):
        started.append((spec, task))
        return USE | {"peak": 130_000_000 + len(started)}

    monkeypatch.setattr(memory, "measure_memory", measure)
    return started


def run_process(monkeypatch, capsys, method: str) -> dict:
    """What the process prints for a method, run in this one."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({**TASK, "method": method})))
    answer(memory.decode)
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("quick")
def test_plain_decoding_and_every_method_have_a_process_each(prompts, processes):
    options = ["--prompts", prompts, "--methods", "lookup|chain;lookup | talon:budget=8", "--max-new-tokens", 4]
    rows = json.loads(run("bench", "memory", *options, "--verifier", "coupled", "--json").stdout)["rows"]
    assert [spec for spec, _ in processes] == ["none", "lookup|chain|coupled", "lookup|talon:budget=8|coupled"]
    assert [row["added"] for row in rows] == [30_000_001, 30_000_002, 30_000_003]
    assert (processes[0][1]["options"], len(processes[0][1]["prompts"])) == (OPTIONS, 2)
    shown = run("bench", "memory", *options).stdout
    assert "130.0" in shown
    assert "GPU" not in shown


@pytest.mark.usefixtures("quick")
def test_finished_methods_are_not_run_again(prompts, processes, tmp_path):
    options = ["--prompts", prompts, "--methods", "lookup|chain", "--out", tmp_path / "runs", "--json"]
    first, again = (run("bench", "memory", *options).stdout for _ in range(2))
    assert first == again
    assert len(processes) == 2


def test_a_pair_that_is_not_lossless_is_refused_before_a_process_starts(capsys, processes):
    assert "Eagle with RRSw is not lossless" in complaint(capsys, "bench", "memory", "--methods", "lookup|eagle|rrsw")
    assert processes == []


def test_the_process_decodes_and_tells_its_memory(monkeypatch, capsys):
    found = run_process(monkeypatch, capsys, "lookup|chain")
    assert found["tokens"] == 4
    assert 50e6 < found["loaded"] <= found["peak"]
    assert (found["device_loaded"], found["device_peak"]) == (0, 0)


def test_the_process_tells_why_it_refuses(monkeypatch, capsys):
    assert "lookupp" in run_process(monkeypatch, capsys, "lookupp|chain")["refused"]


@pytest.mark.slow
@pytest.mark.skipif(not memory.STATUS.exists(), reason="only Linux tells a peak that can be reset")
def test_the_peak_is_of_what_was_in_use_since_it_was_reset():
    """In a process of its own: the system may take back memory of one that has run many tests."""
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    low, high, later, reset = json.loads(done.stdout)
    assert high - low > 0.9 * LARGE
    assert later - low > 0.9 * LARGE
    assert reset < high - 0.9 * LARGE


def test_a_process_that_dies_is_an_error_with_its_last_words(monkeypatch):
    monkeypatch.setattr(memory, "__name__", "drafttree.nowhere")
    with pytest.raises(ModelError, match=r"the process of 'none' has ended with code 1: .*nowhere"):
        memory.measure_memory("none", TASK)


@pytest.mark.slow
def test_a_fresh_process_needs_less_for_lookup_than_for_a_second_model():
    lookup, model = (memory.measure_memory(f"{name}|chain", TASK) for name in ("lookup", "embedded-draft"))
    assert lookup["tokens"] == model["tokens"] == 4
    assert lookup["loaded"] < model["loaded"]
