"""Costs are kept on disk for the target, drafter and machine that they were measured of, and for no other."""

import json
import sys
from pathlib import Path

import pytest
import torch

from drafttree import Decoder
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.drafters import LanguageModelDrafter, MixedDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.engine.drafting import measure
from drafttree.engine.drafting.prices import CostFile, KeptCosts, cost_key
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.models import TargetModel
from drafttree.policies import Auto
from testing import tiny
from testing.toy import Table, ToyModel

OTHER = CostCurve(Costs((1,), (2.0,)), (DraftCosts(0.1, Costs((1,), (0.1,))),), 0.0, 0.0)
LOOKUP = PromptLookupDrafter(tiny.VOCAB, max_ngram=3)


@pytest.fixture
def measured(monkeypatch, tmp_path) -> list[tuple]:
    """What was measured, of which the costs are the toy ones; the user's cache folder is empty."""
    calls: list[tuple] = []

    def count(target, drafter, rounds) -> KeptCosts:
        calls.append((target, drafter))
        return KeptCosts(TOY_COSTS, 1.5)

    monkeypatch.setattr(measure, "measure_costs", count)
    monkeypatch.setattr(measure, "is_current", lambda kept, target: kept.alone == 1.5)
    monkeypatch.setattr("drafttree.engine.drafting.disk_cache.user_cache_path", lambda name: tmp_path / name)
    return calls


def decoder(drafter=LOOKUP, dtype: torch.dtype = torch.float32) -> Decoder:
    return Decoder(TargetModel(tiny.build("llama").to(dtype)), drafter, Auto())


def files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("*.json"))


def test_costs_are_measured_once_and_read_back(measured, tmp_path):
    assert decoder().costs() == TOY_COSTS
    (file,) = files(tmp_path)
    assert json.loads(file.read_text())["value"] == {"costs": TOY_COSTS.to_json(), "alone": 1.5}
    assert decoder().costs() == TOY_COSTS
    assert len(measured) == 1


def test_costs_that_do_not_hold_any_more_are_measured_again(measured, monkeypatch):
    assert decoder().costs() == TOY_COSTS
    monkeypatch.setattr(measure, "is_current", lambda kept, target: False)
    assert decoder().costs() == TOY_COSTS
    assert len(measured) == 2


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"key": 1}', "\x00"])
def test_a_broken_file_is_measured_again_and_mended(broken, measured, tmp_path):
    assert decoder().costs() == TOY_COSTS
    (file,) = files(tmp_path)
    file.write_text(broken)
    assert decoder().costs() == TOY_COSTS
    assert len(measured) == 2
    assert decoder().costs() == TOY_COSTS
    assert len(measured) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"costs": TOY_COSTS.to_json() | {"target": {"4": 1.0}}},
        {"costs": TOY_COSTS.to_json() | {"v": 1}},
        {"costs": TOY_COSTS.to_json() | {"overhead": "fast"}},
        {"costs": None},
        {"alone": "slow"},
        {"alone": -1.0},
    ],
    ids=str,
)
def test_a_curve_of_another_version_is_measured_again(change, measured, tmp_path):
    assert decoder().costs() == TOY_COSTS
    (file,) = files(tmp_path)
    kept = json.loads(file.read_text())
    file.write_text(json.dumps(kept | {"value": kept["value"] | change}))
    assert decoder().costs() == TOY_COSTS
    assert len(measured) == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs the permissions of POSIX")
def test_a_folder_that_cannot_be_written_is_no_error(measured, tmp_path):
    (tmp_path / "drafttree").write_text("a file where the folder should be")
    assert decoder().costs() == TOY_COSTS
    assert decoder().costs() == TOY_COSTS
    assert len(measured) == 2


def test_costs_of_sampled_texts_are_measured_and_kept_apart(measured, tmp_path):
    made = decoder()
    assert made.costs() == made.costs(greedy=False) == decoder().costs(greedy=False) == TOY_COSTS
    assert len(measured) == len(files(tmp_path)) == 2


def test_given_costs_are_neither_measured_nor_kept(measured, tmp_path):
    assert decoder().with_costs(OTHER).costs() is OTHER
    assert not measured
    assert not files(tmp_path)


def test_a_model_that_cannot_be_told_apart_is_not_kept(measured, tmp_path):
    assert cost_key(ToyModel(Table()), LOOKUP) is None
    kept = KeptCosts(OTHER, 1.5)
    assert CostFile(ToyModel(Table()), LOOKUP).write(kept) is kept
    assert CostFile(ToyModel(Table()), LOOKUP).read() is None
    assert not files(tmp_path)


def key(drafter=LOOKUP, family: str = "llama", dtype: torch.dtype = torch.float32) -> str:
    found = cost_key(TargetModel(tiny.build(family).to(dtype)), drafter)
    assert found
    return found


def near(family: str) -> LanguageModelDrafter:
    return LanguageModelDrafter(TargetModel(tiny.build(family)))


def test_the_key_is_that_of_shapes_and_not_of_values():
    other = tiny.build("llama")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1.0
    assert cost_key(TargetModel(other), LOOKUP) == key() == key(PromptLookupDrafter(tiny.VOCAB, max_ngram=3))
    assert key(near("gpt2")) == key(near("gpt2"))


def test_whatever_changes_the_costs_changes_the_key(monkeypatch):
    keys = [
        key(),
        key(family="gpt2"),
        key(dtype=torch.bfloat16),
        key(PromptLookupDrafter(tiny.VOCAB, max_ngram=2)),
        key(SuffixDrafter(tiny.VOCAB)),
        key(near("llama")),
        key(near("gpt2")),
        key(MixedDrafter(SuffixDrafter(tiny.VOCAB), near("gpt2"))),
        key(MixedDrafter(SuffixDrafter(tiny.VOCAB), near("llama"))),
    ]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    keys.append(key())
    monkeypatch.setattr(torch, "__version__", "9.9")
    keys.append(key())
    assert len(set(keys)) == len(keys)
