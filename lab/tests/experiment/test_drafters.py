"""The table of drafters and policies: plain decoding in every set, each pair once, and what every drafter costs."""

import pytest
from safetensors.torch import load_file

import drafttree
from drafttree.drafters import MixedDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.errors import ConfigError
from drafttree.loading.zoo import folder
from drafttree_lab.experiment.methods import bench_drafters, bench_methods

SETS = {"openings": ["The old man looked at the sea"], "lists": ["one, two, three, one, two, three, one,", "A B A B A"]}
POLICIES = ["chain:depth=2", "talon:budget=4"]


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(drafter="embedded-draft", dtype="float32")


@pytest.fixture(scope="module")
def found(decoder):
    lookup = PromptLookupDrafter(decoder.target.vocab_size)
    return {"model": decoder.drafter, "lookup": lookup}


def test_every_pair_is_measured_on_every_set_beside_plain_decoding(decoder, found):
    steps = []
    result = bench_drafters(decoder, found, SETS, POLICIES, max_new_tokens=6, progress=steps.append)
    methods = ["plain", *(f"{name}|{spec}" for name in found for spec in POLICIES)]
    assert [(row.method, row.group) for row in result.rows] == [(name, group) for group in SETS for name in methods]
    assert len(steps) == 3 * len(methods)
    assert {row.prompts for row in result.rows if row.group == "lists"} == {2}
    assert all(row.law.tau == row.law.measured == 1 for row in result.rows if row.method == "plain")
    assert result.summary()["rows"][0]["group"] == "openings"


def test_methods_are_measured_as_they_are_listed_and_not_crossed(decoder):
    methods = ["lookup|chain:depth=2;suffix|talon:budget=4|coupled", "none"]
    result = bench_methods(decoder.plain(), methods, SETS, max_new_tokens=4, temperature=1.0)
    listed = ("plain", "lookup|chain:depth=2", "suffix|talon:budget=4|coupled")
    assert [(row.method, row.group) for row in result.rows] == [(name, group) for group in SETS for name in listed]
    assert [cost.drafter for cost in result.costs] == ["lookup", "suffix"]


def test_records_count_the_prompts_of_every_set(decoder):
    result = bench_methods(decoder.plain(), ["lookup|chain:depth=2"], SETS, max_new_tokens=4)
    records = [(text.group, text.prompt) for text in result.texts if text.way == "lookup|chain:depth=2"]
    assert records == [("openings", 0), ("lists", 0), ("lists", 1)]


def test_a_drafters_memory_is_that_of_its_files_and_caches(decoder, found):
    result = bench_drafters(decoder, found, SETS, ["chain:depth=2"], max_new_tokens=6)
    costs = {cost.drafter: cost for cost in result.costs}
    stored = load_file(folder("embedded-draft") / "model.safetensors")
    assert costs["model"].weight_bytes == sum(4 * tensor.numel() for tensor in stored.values())
    assert costs["lookup"].weight_bytes == 0
    assert costs["lookup"].cache_bytes > 0
    assert costs["model"].cache_bytes > 0
    assert costs["model"].passes == pytest.approx(2, abs=0.7)


def test_a_longer_text_takes_more_memory(decoder):
    for drafter in (PromptLookupDrafter(4096), SuffixDrafter(4096), MixedDrafter(SuffixDrafter(4096), decoder.drafter)):
        sizes = []
        for length in (8, 64):
            engine = decoder.with_drafter(drafter)
            sizes.append(engine.generate(list(range(5, 5 + length)), max_new_tokens=2).metrics.draft_cache_bytes)
        assert sizes[0] < sizes[1]


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        ({"drafters": {}}, "drafter"),
        ({"sets": {}}, "prompt"),
        ({"sets": {"empty": []}}, "prompt"),
        ({"policies": []}, "policy"),
    ],
)
def test_nothing_to_measure_is_said(decoder, found, given, lacking):
    everything = {"drafters": found, "sets": SETS, "policies": POLICIES}
    with pytest.raises(ConfigError, match=f"there is no {lacking} to measure"):
        bench_drafters(decoder, **everything | given)
