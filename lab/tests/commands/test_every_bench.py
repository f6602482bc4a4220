"""Every `drafttree bench` at its smallest size: a table for a person, and the same figures as one JSON document."""

import json
import math
from contextlib import nullcontext

import pytest
import torch

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.loading.pretrained import load_model, load_tokenizer
from drafttree.measure import shapes
from drafttree.models.triton import triton_support
from drafttree_lab import device_clock
from drafttree_lab.bench import images, kernels, loading, memory, micro, serve
from drafttree_lab.commands import bench
from drafttree_lab.peers.gguf_file import write_gguf
from lab_helpers.image_shapes import SMALL
from testing.command_line import run
from testing.device_clocks import StandInClock
from testing.held_server import held_server

SHORT = ["--prompts", "{prompts}", "--limit", 1]
TEXTS = [*SHORT, "--max-new-tokens", 4]
ONCE = [*TEXTS, "--repeats", 1]
CHAIN = ["--policies", "chain"]
DRAWN = ["--rounds", 1, "--shapes", "chain", "--verifiers", "coupled", "--temperatures", "1"]
MICRO = ["--vocab", "30", "--nodes", "2", "--hidden", 8, "--repeats", 1, "--trees", 1]
BENCHES = {
    "acceptance": [*SHORT, *DRAWN],
    "batch": [*ONCE, "--batches", "1,2", "--budgets", "2"],
    "images": ["--images", "1", "--dtype", "float32", "--repeats", 2, "--max-new-tokens", 2],
    "kernels": ["--shape", "100m", "--vocab", 9, "--rows", "1", "--prefixes", "9", "--nodes", "1", "--repeats", 1],
    "methods": [*ONCE, *CHAIN, "--drafters", "lookup", "--passes", "1,2"],
    "micro": [*MICRO, "--verifiers", "coupled", *CHAIN],
    "loading": ["embedded-draft"],
    "memory": [*TEXTS, "--methods", "lookup|chain"],
    "perplexity": ["embedded-draft", "--text", __file__, "--tokens", 40, "--length", 20, "--dtype", "float32"],
    "real": ["{models}", "--precision", "bfloat16", "--limit", 1, "--max-new-tokens", 4],
    "serve": ["--prompts", "{prompts}", "--clients", "1", "--repeats", 1, "--max-new-tokens", 3],
}


@pytest.fixture
def small(monkeypatch):
    """Costs and memory that need not be measured, small sizes, and one server where two would be started."""
    monkeypatch.setattr(Decoder, "costs", lambda self, **_: TOY_COSTS)
    use = {"loaded": 10_000_000, "peak": 30_000_000, "device_loaded": 0, "device_peak": 0, "tokens": 4}
    monkeypatch.setattr(memory, "measure_memory", lambda *_: use)
    stages = {"weights": 1.0, "check": 2.0}
    seconds = {"imports": 3.0, "loaded": 3.0, "first_token": 3.5, "stages": stages, "precision": "float32"}
    sizes = dict.fromkeys(("imports", "weights", "steady", "peak", "resident_peak"), 10_000_000)
    taken = seconds | {f"{name}_bytes": size for name, size in sizes.items()}
    monkeypatch.setattr(loading, "measure_loading", lambda *_: taken)
    monkeypatch.setattr(micro, "WARM_UP", 1)
    monkeypatch.setattr(kernels, "MEMORY", 4000)
    monkeypatch.setattr(device_clock, "open_clock", lambda *_: StandInClock())
    monkeypatch.setattr(triton_support, "find_spec", lambda _: None)
    monkeypatch.setitem(shapes.SHAPES, "100m", shapes.Shape(32, 1, 48, heads=4, key_value_heads=2, head_dim=16))
    monkeypatch.setitem(images.SHAPES, "smolvlm-256m", SMALL)
    with held_server() as held:
        monkeypatch.setattr(serve, "_served", lambda arguments: nullcontext(held.address))
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a model as a GGUF file."""
    folder = tmp_path_factory.mktemp("models")
    module = load_model("embedded-draft", torch.float32, torch.device("cpu"))
    write_gguf(module, load_tokenizer("embedded-draft"), folder / "draft.gguf", "f32")
    return folder


def numbers(value):
    """Every number of a JSON document."""
    if isinstance(value, dict | list):
        return [found for inner in (value.values() if isinstance(value, dict) else value) for found in numbers(inner)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []


def test_no_bench_is_missing():
    assert {command.name for command in bench.app.registered_commands if not command.hidden} == set(BENCHES)


@pytest.mark.few(2)
@pytest.mark.usefixtures("quick", "small")
@pytest.mark.parametrize("command", BENCHES)
def test_a_bench_prints_a_table_and_the_same_as_one_document(command, prompts, models, tmp_path):
    options = [str(part).format(prompts=prompts, models=models) for part in BENCHES[command]]
    if "--out" in run("bench", command, "--help").stdout:
        options += ["--out", tmp_path / "out"]
    shown, document = (run("bench", command, *options, *form) for form in ([], ["--json"]))
    assert (shown.exit_code, document.exit_code) == (0, 0), shown.exception or document.exception
    found = json.loads(document.stdout)
    assert numbers(found)
    assert all(math.isfinite(number) for number in numbers(found))  # JSON knows no infinity
    assert len(shown.stdout.splitlines()) > 2
