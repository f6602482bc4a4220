"""Tuned policies: files are written, read and applied, and refused by name where they are of something else."""

import json
from dataclasses import replace

import pytest

import drafttree
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.drafting.prices import machine
from drafttree.engine.model_digest import model_digest
from drafttree.errors import ConfigError, InputError, ModelError
from drafttree.loading import TunedPolicy, check_save, parse_policies, read_tuned
from drafttree.loading.tuned import TunedModel
from drafttree.policies import Talon

CURVE = CostCurve(
    target=Costs((1, 8), (1.0, 2.0)),
    draft=(DraftCosts(0.25, Costs((1,), (0.125,))),),
    overhead=0.5,
    plain_overhead=0.0625,
)


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(drafter="lookup", dtype="float32")


@pytest.fixture
def tuned(decoder):
    return TunedPolicy(
        target=TunedModel("embedded", model_digest(decoder.target)),
        drafter=TunedModel("lookup", model_digest(decoder.drafter)),
        policy="talon:budget=16",
        verifier="auto",
        dtype="float32",
        machine=machine(decoder.target.device),
        costs=CURVE,
        measured={"expected": 1.5},
        drafttree="0.1.0",
        date="2026-01-31",
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tuned.json"


def test_what_is_written_is_read(tuned, path):
    tuned.write(path)
    assert read_tuned(path) == replace(tuned, path=str(path))


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [str, lambda path: path, read_tuned])
def test_a_tuned_policy_brings_drafter_policy_dtype_and_costs(tuned, path, kind):
    tuned.write(path)
    decoder = drafttree.load("embedded", policy=kind(path) if kind is not str else str(path))
    assert decoder.policy == Talon(budget=16)
    assert type(decoder.drafter).__name__ == "PromptLookupDrafter"
    assert str(decoder.target.dtype) == "torch.float32"
    assert decoder.costs() == CURVE
    assert decoder.verifier is None


def test_its_draft_temperature_is_a_default_and_a_file_without_one_means_1(tuned, path):
    replace(tuned, draft_temperature=0.6).write(path)
    assert read_tuned(path).draft_temperature == 0.6
    assert drafttree.load("embedded", policy=path).defaults["draft_temperature"] == 0.6
    found = json.loads(path.read_text())
    del found["draft_temperature"]
    path.write_text(json.dumps(found))
    assert read_tuned(path).draft_temperature == 1.0
    assert "draft_temperature" not in drafttree.load("embedded", policy=path).defaults


def test_its_verifier_holds_where_none_is_named(tuned, path):
    replace(tuned, verifier="point-mass").write(path)
    assert drafttree.load("embedded", policy=path).verifier.__name__ == "PointMass"
    assert drafttree.load("embedded", policy=path, verifier="coupled").verifier.__name__ == "Coupled"


def test_the_curve_of_another_machine_is_not_taken(tuned, path):
    replace(tuned, machine="a machine of theirs").write(path)
    assert drafttree.load("embedded", policy=path).learned.given is None


def test_where_tuning_said_not_to_speculate_decoding_is_plain(tuned, path):
    replace(tuned, drafter=None, costs=None).write(path)
    assert drafttree.load("embedded", policy=path).drafter is None
    with pytest.raises(ModelError, match=r"tuned\.json says not to speculate; leave the drafter"):
        drafttree.load("embedded", "lookup", policy=path)


def test_plain_decoding_may_be_asked_for(tuned, path):
    tuned.write(path)
    assert drafttree.load("embedded", None, policy=path).drafter is None


def test_another_target_drafter_or_dtype_is_refused_by_name(tuned, path):
    replace(tuned, target=TunedModel("their/model", "0" * 16)).write(path)
    with pytest.raises(ModelError, match=r"tuned\.json was tuned for 'their/model', but this target is another"):
        drafttree.load("embedded", policy=path)
    replace(tuned, drafter=TunedModel("lookup", "0" * 16)).write(path)
    with pytest.raises(ModelError, match=r"tuned\.json was tuned with 'lookup', but this drafter is another"):
        drafttree.load("embedded", policy=path)
    tuned.write(path)
    with pytest.raises(ModelError, match=r"drafter is another model, .* quantized in another way; tune again with it"):
        drafttree.load("embedded", "suffix", policy=path)
    with pytest.raises(
        ModelError, match=r"tuned\.json was tuned for a target in float32, and this one is in bfloat16; load"
    ):
        drafttree.load("embedded", policy=path, dtype="bfloat16")


GAP = {"1": 1.0, "64": 2.0}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"format": "something"}, "this is not a tuned policy; make one by drafttree tune --save"),
        (
            {"version": 2},
            "a tuned policy in format version 2, but this drafttree reads version 1; make one by drafttree tune --save",
        ),
        ({"costs": {**CURVE.to_json(), "target": GAP}}, "'target' has a gap between 1 and 64; measure 8 too"),
        ({"costs": None}, "a cost curve is not a JSON object"),
        ({"policy": "talom"}, "unknown policy 'talom'"),
        ({"policy": 3}, "its 'policy' is 3, not text"),
        ({"verifier": "greddy"}, "unknown verifier 'greddy'"),
        ({"target": {"name": "embedded"}}, "its 'target' lacks name or digest"),
        ({"drafter": "lookup"}, "its 'drafter' lacks name or digest"),
        ({"dtype": None}, "its 'dtype' is None, not text"),
        ({"measured": 3}, "its 'measured' is 3, not an object"),
        ({"draft_temperature": 0}, "its 'draft_temperature' is 0, not a number of at least 1e-06"),
        ({"draft_temperature": "warm"}, "its 'draft_temperature' is 'warm', not a number of at least 1e-06"),
    ],
)
def test_files_that_are_none_are_refused_by_name(change, fault, tuned, path):
    tuned.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError) as refused:
        drafttree.load("embedded", policy=path)
    assert str(refused.value).startswith(f"{path}: ")
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    ("text", "fault"), [("{", "not JSON"), ("[]", "this is not a tuned policy"), (None, "cannot be read")]
)
def test_files_that_are_no_json(text, fault, path):
    if text:
        path.write_text(text)
    with pytest.raises(InputError, match=rf"tuned\.json: {fault}"):
        drafttree.load("embedded", policy=str(path))


def test_a_file_without_a_drafter_is_refused(tuned, path):
    tuned.write(path)
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "drafter"})
    )
    with pytest.raises(InputError, match="its 'drafter' is missing; make one by drafttree tune --save"):
        drafttree.load("embedded", policy=path)


def test_a_file_to_save_in_is_checked_before_time_is_spent(tmp_path, path):
    check_save(path)
    for wrong, fault in (
        (tmp_path / "tuned.txt", "does not end in .json"),
        (tmp_path / "no" / "a.json", "its folder does not exist"),
    ):
        with pytest.raises(InputError, match=fault):
            check_save(wrong)


def test_a_file_among_policies_is_said_to_be_one():
    with pytest.raises(
        ConfigError, match=r"'tuned\.json' is a file of a tuned policy, for load, generate, chat and batch"
    ):
        parse_policies(["chain;tuned.json"])
