"""What loading takes: a process per model, its stages, and the memory beyond that of the imports."""

import json
from typing import Any

import pytest

from drafttree.core.errors import ConfigError
from drafttree_lab.bench import loading
from testing.command_line import run

FOUND = {
    **{"imports": 3.0, "loaded": 2.5, "first_token": 2.75, "precision": "bfloat16", "runs_on": "NativeBackend"},
    **{"stages": {"weights": 0.5, "pack": 0.25, "check": 1.5, "other": 0.25}, "weights_bytes": 200_000_000},
    **{"imports_bytes": 300_000_000, "steady_bytes": 210_000_000, "peak_bytes": 230_000_000},
    "resident_peak_bytes": 700_000_000,
}


@pytest.fixture
def tasks(monkeypatch) -> list[Any]:
    """The tasks that a process was started for; none is started."""
    started = []

    def measure(task):
        started.append(task)
        return FOUND

    monkeypatch.setattr(loading, "measure_loading", measure)
    return started


@pytest.mark.usefixtures("quick")
def test_every_model_and_quantisation_has_a_process_and_a_row(tasks):
    options = ["embedded", "embedded-draft", "--dtype", "bfloat16", "--quantize", "none", "--quantize", "int8"]
    rows = json.loads(run("bench", "loading", *options, "--json").stdout)["rows"]
    assert [row["model"] for row in rows] == [
        *("embedded bfloat16", "embedded int8", "embedded-draft bfloat16", "embedded-draft int8")
    ]
    assert [(task["target"], task["quantize"]) for task in tasks[:2]] == [("embedded", "none"), ("embedded", "int8")]
    shown = run("bench", "loading", "embedded").stdout
    assert "2.8" in shown, "seconds to the first token"
    assert "1.15" in shown, "the peak in parts of the weights"


def test_a_process_tells_its_stages_and_memory():
    task = {"target": "embedded", "dtype": "float32", "quantize": None, "drafter": "none"}
    found = loading.measure_loading(task)
    assert found["precision"] == "float32"
    assert {"weights", "tokenizer", "check", "other"} <= found["stages"].keys()
    assert abs(sum(found["stages"].values()) - found["loaded"]) < 0.1 * found["loaded"] + 0.05
    assert found["loaded"] <= found["first_token"]
    assert found["steady_bytes"] <= found["peak_bytes"]
    assert found["weights_bytes"] > 30e6


def test_a_model_that_is_refused_is_told():
    task = {"target": "no/such/folder", "dtype": "float32", "quantize": None, "drafter": "none"}
    with pytest.raises(ConfigError, match="no/such/folder"):
        loading.measure_loading(task)
