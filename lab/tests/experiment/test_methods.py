import math

import pytest

import drafttree
from drafttree.errors import ConfigError
from drafttree.evaluation.compare import compare
from drafttree.measure.prompt_sets import shipped_prompts
from drafttree.verifiers import RRSw
from drafttree_lab.experiment.methods import bench_methods, bench_policies, loops
from drafttree_lab.experiment.overhead import PARTS, measure_overhead
from testing.given_times import give_times, idle

PROMPT = "The old man looked at the sea"


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32", policy="chain:depth=3")


def test_comparing_runs_three_ways_and_explains_the_ratio(decoder, monkeypatch):
    give_times(monkeypatch, idle)
    compared = compare(decoder, PROMPT, max_new_tokens=12, repeats=1)
    assert set(compared.speeds) == {"speculative", "plain", "transformers"}
    assert compared.from_plain is None
    assert compared.from_transformers is None
    assert compared.law.measured == pytest.approx(compared.speeds["speculative"] / compared.speeds["plain"])
    assert f"{compared.law.measured:.2f} times" in compared.verdict
    assert compared.summary()["law"]["predicted"] == compared.law.predicted


def test_sampled_text_is_compared_with_plain_decoding_only(decoder):
    compared = compare(decoder, PROMPT, max_new_tokens=12, repeats=1, temperature=1.0, seed=5)
    assert not compared.greedy
    assert compared.from_plain is None


def test_comparing_needs_a_drafter(decoder):
    for function in (
        lambda plain: compare(plain, PROMPT),
        lambda plain: bench_policies(plain, [PROMPT], ["chain"]),
        lambda plain: measure_overhead(plain, [PROMPT], ["chain"]),
    ):
        with pytest.raises(ConfigError, match="drafter"):
            function(decoder.plain())


def test_the_parts_of_a_round_add_up(decoder):
    plain, result = measure_overhead(decoder, [PROMPT], ["talon"], repeats=1, max_new_tokens=12)
    assert (plain.policy, plain.draft) == ("plain", 0)
    parts = [getattr(result, part) for part in PARTS]
    assert min(result.target, result.draft, *parts) > 0
    assert sum(parts) == pytest.approx(result.seconds)
    assert result.target + result.draft + result.seconds == pytest.approx(result.round)
    assert 0 < result.share < 1
    assert result.h == pytest.approx(sum(parts) / result.plain_pass)
    assert result.operations > plain.operations > 0
    assert result.calls > plain.calls > 0


def test_the_parts_of_a_round_add_up_over_several_repeats(decoder):
    for result in measure_overhead(decoder, [PROMPT], ["chain", "talon"], repeats=4, max_new_tokens=6):
        assert sum(getattr(result, part) for part in PARTS) == pytest.approx(result.seconds)


def test_policies_are_measured_against_plain_decoding(decoder):
    seen = []
    result = bench_policies(decoder, [PROMPT], ["chain"], repeats=2, progress=seen.append, max_new_tokens=12)
    plain, chain = result.rows
    assert seen == ["plain", "chain", "chain", "plain"]
    assert (plain.method, plain.law.tau, plain.law.measured, plain.mean_nodes) == ("plain", 1, 1, 1)
    assert chain.law.tau >= 1
    assert 0 <= chain.acceptance_rate <= 1
    assert result.summary()["rows"][1]["method"] == "chain"


def test_a_tree_is_compared_with_the_chain_of_the_same_drafter_over_the_same_texts(decoder):
    prompts = [PROMPT, [5, 6, 7], "A letter"]
    methods = ["lookup|dynatree", "lookup|chain:depth=3", "embedded-draft|chain", "embedded-medusa|dynatree"]
    result = bench_methods(decoder, methods, {"all": prompts}, max_new_tokens=8)
    rows = {row.method: row for row in result.rows if row.group == "all"}
    tree, chain = rows["lookup|dynatree"], rows["lookup|chain:depth=3"]
    assert rows["embedded-medusa|dynatree"].over_chain is rows["plain"].over_chain is None
    assert (chain.over_chain.mean, chain.over_chain.low, chain.over_chain.high) == (1, 1, 1)
    assert rows["embedded-draft|chain"].over_chain.mean == 1
    speeds = {way: [text.tokens / text.seconds for text in result.texts if text.way == way] for way in rows}
    for found, base in ((tree.over_chain, chain.method), (tree.over_plain, "plain")):
        logs = [math.log(mine / other) for mine, other in zip(speeds[tree.method], speeds[base], strict=True)]
        assert math.log(found.mean) == pytest.approx(sum(logs) / 3)
        assert found.low < found.mean < found.high


def test_every_text_of_every_repeat_has_a_record(decoder):
    result = bench_policies(decoder, [PROMPT, [5, 6, 7]], ["chain:depth=2"], repeats=2, max_new_tokens=6)
    assert {(text.way, text.prompt, text.repeat) for text in result.texts} == {
        (way, prompt, repeat) for way in ("plain", "chain:depth=2") for prompt in (0, 1) for repeat in (0, 1)
    }
    assert len(result.texts) == 8
    for text in result.texts:
        assert text.tokens == sum(text.committed) == 6
        assert [len(ranks) for ranks in text.ranks] == text.accepted
        assert all(rank == 1 for ranks in text.ranks for rank in ranks)
    assert result.summary()["texts"][0]["group"] == "all"


def test_acceptance_is_told_by_node_and_by_level(decoder):
    result = bench_policies(decoder, [PROMPT], ["talon"], repeats=1, max_new_tokens=24)
    (text,) = (text for text in result.texts if text.way == "talon")
    row = result.rows[1]
    assert row.acceptance_rate == pytest.approx(sum(text.accepted) / sum(nodes - 1 for nodes in text.nodes))
    assert row.level_acceptance == pytest.approx(sum(text.accepted) / sum(text.levels))


def test_a_pair_that_is_not_lossless_is_refused_before_anything_runs(decoder):
    with pytest.raises(ConfigError, match="Eagle with RRSw is not lossless"):
        bench_policies(decoder.with_verifier(RRSw), [PROMPT], ["chain", "eagle"], temperature=1.0)


def test_what_loops():
    assert loops([1, 2, 3] * 16)
    assert loops([9, 8, *[1] * 48])
    assert not loops(list(range(17)) * 4)
    assert not loops([1] * 47)


def test_the_shipped_prompts_are_openings():
    prompts = shipped_prompts()
    assert len(prompts) >= 6
    assert all(prompts)
