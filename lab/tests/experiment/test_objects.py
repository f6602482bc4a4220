"""Policies as objects and verifiers as classes are measured under their canonical specifications."""

import pytest

import drafttree
from drafttree.drafters import PromptLookupDrafter
from drafttree.errors import ConfigError
from drafttree.policies import Chain, Talon
from drafttree.verifiers import PointMass, RRSw
from drafttree_lab.experiment.law import measure_law
from drafttree_lab.experiment.methods import bench_drafters, bench_policies
from drafttree_lab.experiment.overhead import measure_overhead
from drafttree_lab.micro.verifiers import bench_verifiers

PROMPT = list(range(20, 26)) * 3
POLICIES = [Talon(budget=8, width=4), "talon:width=4,budget=8", Chain]
SPECS = ["talon:budget=8,width=4", "chain"]


class Walk(PointMass):
    """PointMass by another name."""


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32")


def test_policies_are_measured_as_objects(decoder):
    options = {"repeats": 1, "max_new_tokens": 4}
    result = bench_policies(decoder, [PROMPT], POLICIES, **options)
    assert [row.method for row in result.rows] == ["plain", *SPECS]
    assert [row.policy for row in measure_overhead(decoder, [PROMPT], POLICIES, **options)] == ["plain", *SPECS]
    law = measure_law(decoder, [PROMPT], POLICIES, context=8, peers=False, **options)
    assert [row.method for row in law.bench.rows] == ["plain", *SPECS]
    drafters = {"mine": PromptLookupDrafter(decoder.target.vocab_size)}
    rows = bench_drafters(decoder, drafters, {"one": [PROMPT]}, POLICIES, **options).rows
    assert [row.method for row in rows] == ["plain", *(f"mine|{spec}" for spec in SPECS)]


def test_verifiers_are_timed_as_classes():
    result = bench_verifiers([RRSw, Walk], nodes=(4,), vocabs=(40,), hidden=8, repeats=1)
    assert [row.verifier for row in result.rows] == ["rrsw", f"{__name__}.Walk"]
    with pytest.raises(ConfigError, match="it is no subclass of"):
        bench_verifiers([Talon], nodes=(4,), vocabs=(40,), hidden=8, repeats=1)
