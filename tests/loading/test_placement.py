"""dtype="auto" takes what a measurement finds faster where a CPU has bfloat16, and measures nothing elsewhere."""

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from drafttree import load
from drafttree.errors import ModelError
from drafttree.loading import placement
from drafttree.loading.pretrained import linear_shapes
from helpers.refusals import told
from testing import tiny

CPU = torch.device("cpu")
SHAPES = [(96, 32), (32, 96)]


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """A CPU with bfloat16 whose products take the given seconds; how often they were timed."""
    seconds, calls = {torch.float32: 2.0, torch.bfloat16: 1.0}, []

    class Products:
        def __init__(self, shapes, dtype):
            self.dtype = dtype
            calls.append((dtype, shapes))

        def seconds(self, rows):
            found = seconds[self.dtype]
            return found if isinstance(found, float) else found[rows]

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(placement, "_Products", Products)
    monkeypatch.setattr("drafttree.core.disk_cache.user_cache_path", lambda name: tmp_path / "cache" / name)
    return SimpleNamespace(seconds=seconds, calls=calls)


@pytest.mark.parametrize("faster", [torch.float32, torch.bfloat16])
def test_auto_is_the_faster_one_and_told(faster, timed, folder, caplog):
    timed.seconds[faster] = 0.5
    with caplog.at_level(logging.INFO, "drafttree"):
        assert placement.find_placement(str(folder), "auto", "cpu") == (CPU, faster)
    assert f"dtype: {str(faster).removeprefix('torch.')} (products, rows = 1: float32" in caplog.text
    assert f", {str(faster).removeprefix('torch.')}, cpu" in repr(load(str(folder), "none").target)


@pytest.mark.parametrize(
    ("drafter", "policy", "expected"),
    [
        ("none", "talon", torch.bfloat16),
        ("lookup", "chain:depth=5", torch.bfloat16),
        ("lookup", "chain:depth=9", torch.float32),
        ("lookup", "talon:budget=16", torch.float32),
        ("lookup", "talon:budget=60", torch.bfloat16),
        ("lookup", "auto", torch.bfloat16),
    ],
)
def test_auto_is_the_faster_one_for_the_trees_of_the_policy(drafter, policy, expected, timed, folder):
    timed.seconds[torch.bfloat16] = {1: 1.0, 8: 1.9, 16: 2.1, 32: 1.0}
    assert load(str(folder), drafter, policy).target.dtype == expected


def test_what_was_measured_is_kept_for_the_same_shapes(timed):
    first = placement.measured_times(SHAPES)
    rows = ("1", "8", "16", "32")
    assert first == {"float32": dict.fromkeys(rows, 2.0), "bfloat16": dict.fromkeys(rows, 1.0)}
    timed.seconds[torch.float32] = 0.1
    assert placement.measured_times(SHAPES) == first
    assert placement.measured_times(SHAPES[:1])["float32"] == dict.fromkeys(rows, 0.1)
    assert len(timed.calls) == 4


def test_times_of_a_busy_machine_are_not_kept(timed, monkeypatch):
    monkeypatch.setattr(placement, "SECONDS", 0.0)
    placement.measured_times(SHAPES)
    placement.measured_times(SHAPES)
    assert len(timed.calls) == 4


def test_only_the_first_shapes_of_a_large_model_are_measured(timed):
    placement.measured_times([(1 << 13, 1 << 11)] * 5)
    assert {len(shapes) for _, shapes in timed.calls} == {2}


@pytest.mark.parametrize("without", ["instructions", "a name"])
def test_nothing_is_measured_without_instructions_or_for_a_loaded_target(without, timed, folder, monkeypatch):
    if without == "instructions":
        for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
            monkeypatch.setattr(torch.cpu, name, lambda: False)
    target = str(folder) if without == "instructions" else tiny.build("llama")
    assert placement.find_placement(target, "auto", "cpu") == (CPU, torch.float32)
    assert timed.calls == []


def test_a_folder_that_cannot_be_read_is_refused_by_the_loader(timed, folder):
    (folder / "config.json").write_text("{")
    assert "cannot load model" in told(ModelError, load, str(folder), "none")


def test_shapes_are_those_of_the_loaded_layers(folder):
    module = AutoModelForCausalLM.from_pretrained(folder)
    assert linear_shapes(folder) == [tuple(m.weight.shape) for m in module.modules() if isinstance(m, nn.Linear)]


def test_products_of_both_dtypes_are_timed():
    times, rounds = placement._measure(SHAPES)
    assert rounds >= 2
    assert times.keys() == {"float32", "bfloat16"}
    assert all(0 < seconds < float("inf") for own in times.values() for seconds in own.values())
