"""Policies as objects and verifiers as classes are certified, under their canonical specifications."""

from typing import ClassVar

import pytest

import drafttree
from drafttree import Layer, Sampling
from drafttree.evaluation import pair_sweep
from drafttree.evaluation.certify import certify
from drafttree.evaluation.pair_sweep import sweep_pair, sweep_pairs
from drafttree.policies import Chain, Talon, TreePolicy
from drafttree.verifiers import Coupled, PointMass, RRSw

PROMPT = list(range(20, 26)) * 3
OURS = f"{__name__}.Pairs"
POLICIES = [Talon(budget=8, width=4), "talon:width=4,budget=8", Chain]
SPECS = ["talon:budget=8,width=4", "chain"]


class Pairs(TreePolicy):
    """Two children of the root."""

    source: ClassVar[str] = "a test"

    def levels(self):
        return 1

    def keep(self, layer: Layer):
        return layer.rank < 2


class Walk(PointMass):
    """PointMass by another name."""


class Careless(PointMass):
    """Accepts the first child whatever the target says."""

    def judge(self, view):
        path, token = super().judge(view)
        return ([0, 1], token) if len(path) == 1 < len(view.tokens) else (path, token)


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32")


def test_objects_are_certified(decoder):
    certificate = certify(decoder, [PROMPT], [*POLICIES, Pairs()], max_new_tokens=6)
    assert certificate.passed
    assert [entry.policy for entry in certificate.policies] == ["plain", *SPECS, OURS]
    assert certificate.summary()["policies"][-1]["policy"] == OURS


@pytest.mark.few(1)
@pytest.mark.parametrize(("verifier", "verdict"), [(Walk, "exact"), (Careless, "BIASED"), (Coupled, "coupled")])
def test_classes_are_proven_or_found_out(verifier, verdict):
    found = sweep_pair(Pairs(budget=5), verifier, models=1)
    assert (found.policy, found.verdict) == (f"{OURS}:budget=5", verdict)
    assert found.verifier == ("coupled" if verifier is Coupled else f"{__name__}.{verifier.__name__}")


def test_a_sweep_takes_names_objects_and_classes(monkeypatch):
    for trials in ("large_trials", "text_trials"):
        monkeypatch.setattr(pair_sweep, trials, lambda *_: [])
    table = sweep_pairs([Chain(depth=1), "chain:depth=1", Pairs], [RRSw, "rrsw,point-mass", Walk], models=1)
    verifiers = ["rrsw", "point-mass", f"{__name__}.Walk"]
    assert [(each.policy, each.verifier) for each in table.findings] == [
        (policy, verifier) for policy in ("chain:depth=1", OURS) for verifier in verifiers
    ]
    assert table.passed
    assert table.sampling == Sampling(1.0)
