"""Peak memory: a process per method, what it measures, and what is refused."""

import io
import json
import subprocess
import sys

import pytest

from drafttree.errors import ConfigError, ModelError
from drafttree.measure.run_store import RunStore
from drafttree_lab.display.tables import show_memory
from drafttree_lab.experiment import memory, memory_process
from drafttree_lab.experiment.memory import MemorySetting, MemoryUse, bench_memory, measure_in_process

OPTIONS = {"max_new_tokens": 4, "temperature": 0.0, "seed": 0}
SETTING = MemorySetting("embedded", "float32", "cpu", [[5, 6, 7, 5, 6]], OPTIONS)
LARGE = 200_000_000
PEAKS = f"""
from drafttree_lab.experiment.memory_process import reset_peak, resident

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
    """The methods a process was started for; none is."""
    started = []

    def measure(setting, spec):
        started.append(spec)
        return MemoryUse(100_000_000, 130_000_000 + len(started), 0, 0, 4)

    monkeypatch.setattr(memory, "measure_in_process", measure)
    return started


def run_process(monkeypatch, capsys, method: str) -> dict:
    """What the process prints for a method, run in this one."""
    task = {"setting": vars(SETTING), "method": method}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(task)))
    memory_process.main()
    return json.loads(capsys.readouterr().out)


def test_plain_decoding_and_every_method_have_a_process_each(processes, capsys):
    result = bench_memory(SETTING, ["lookup|chain;lookup | talon:budget=8"])
    assert processes == ["none", "lookup|chain", "lookup|talon:budget=8"]
    assert [row["added"] for row in result.summary()["rows"]] == [30_000_001, 30_000_002, 30_000_003]
    show_memory(result)
    shown = capsys.readouterr().out
    assert "plain" in shown
    assert "GPU" not in shown


def test_finished_methods_are_not_run_again(processes, tmp_path):
    bench_memory(SETTING, ["lookup|chain"], store=RunStore(tmp_path / "runs"))
    result = bench_memory(SETTING, ["lookup|chain", "suffix|chain"], store=RunStore(tmp_path / "runs"))
    assert processes == ["none", "lookup|chain", "suffix|chain"]
    assert result.uses["lookup|chain"].peak == 130_000_002


def test_a_pair_that_is_not_lossless_is_refused_before_a_process_starts(processes):
    with pytest.raises(ConfigError, match="Eagle with RRSw is not lossless"):
        bench_memory(SETTING, ["lookup|eagle|rrsw"])
    assert processes == []


def test_the_process_decodes_and_tells_its_memory(monkeypatch, capsys):
    found = MemoryUse(**run_process(monkeypatch, capsys, "lookup|chain"))
    assert found.tokens == 4
    assert 50e6 < found.loaded <= found.peak
    assert (found.device_loaded, found.device_peak) == (0, 0)


def test_the_process_tells_why_it_refuses(monkeypatch, capsys):
    found = run_process(monkeypatch, capsys, "lookupp|chain")
    assert "lookupp" in found["refused"]


@pytest.mark.slow
@pytest.mark.skipif(not memory_process.STATUS.exists(), reason="only Linux tells a peak that can be reset")
def test_the_peak_is_of_what_was_in_use_since_it_was_reset():
    """In a process of its own: the system may take back memory of one that has run many tests."""
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    low, high, later, reset = json.loads(done.stdout)
    assert high - low > 0.9 * LARGE
    assert later - low > 0.9 * LARGE
    assert reset < high - 0.9 * LARGE


def test_a_process_that_dies_is_an_error_with_its_last_words(monkeypatch):
    monkeypatch.setattr(memory, "PROCESS", "drafttree.nowhere")
    with pytest.raises(ModelError, match=r"the process of 'none' has ended with code 1: .*nowhere"):
        measure_in_process(SETTING, "none")


@pytest.mark.slow
def test_a_fresh_process_needs_less_for_lookup_than_for_a_second_model():
    lookup, model = (measure_in_process(SETTING, f"{name}|chain") for name in ("lookup", "embedded-draft"))
    assert lookup.tokens == model.tokens == 4
    assert lookup.loaded < model.loaded
