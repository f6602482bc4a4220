"""What given cells amount to: values and verdicts, with claims on values of an axis and on sets."""

from dataclasses import replace

import pytest

from drafttree.evaluation.method import Method
from drafttree.policies import Chain
from drafttree_lab.replay.experiment import Block, Setting
from drafttree_lab.replay.paper import Comparison
from lab_helpers.replay_cells import counted, keep_times, measured

AUTOREGRESSIVE = counted([0, 0, 0, 0])
LOW, HIGH = counted([1, 1]), counted([3, 3])


def claim(left, right, **changes):
    about = {"id": "x", "text": "so", "line": 1, "metric": "tau", "left": left, "right": right, "sign": ">"}
    return Comparison(**about | changes)


def judged(found, *claims):
    """Outcome and estimate of claims."""
    result = found.experiment.result.model_copy(update={"claims": list(claims)})
    verdicts = replace(found, experiment=replace(found.experiment, result=result)).verdicts()
    return [(each.outcome, each.estimate) for each in verdicts]


def texts(chain, tree, count=3, **options):
    return [{"AR": counted([0] * 4, **options), "chain": chain, "tree": tree}] * count


def test_a_claim_may_compare_two_sets(experiment):
    found = measured(experiment, {"a": texts(LOW, LOW), "b": texts(LOW, HIGH)})
    assert judged(found, claim("tree@b", "tree@a"), claim("tree", "chain")) == [
        ("reproduced", pytest.approx(4 / 2)),
        ("reproduced", pytest.approx((2 + 4) / 2 / 2)),
    ]


def test_a_claim_may_compare_two_policies_of_an_axis(experiment):
    ways = {"AR": Method(None, Chain())} | {f"tree@{depth}": Method("toy", Chain(depth=depth)) for depth in (2, 3)}
    swept = replace(experiment, blocks=[replace(experiment.blocks[0], ways=ways)])
    found = measured(swept, {"a": [{"AR": AUTOREGRESSIVE, "tree@2": LOW, "tree@3": HIGH}] * 3})
    assert judged(found, claim("tree@2", "tree@3")) == [("contradicted", pytest.approx(0.5))]


def test_a_claim_may_compare_two_settings_of_an_axis(experiment):
    ways = experiment.blocks[0].ways
    blocks = [Block(Setting("a", 0.0, length, None), length, ways) for length in (50, 100)]
    found = measured(replace(experiment, blocks=blocks), {"a@50": texts(LOW, LOW), "a@100": texts(LOW, HIGH)})
    assert judged(found, claim("tree@100", "tree@50"), claim("tree@100", "tree@200")) == [
        ("reproduced", pytest.approx(2.0)),
        ("not run", None),
    ]


def test_a_claim_is_judged_at_its_temperature(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    assert judged(found, claim("tree", "chain", temperature=1.0)) == [("not run", None)]


def test_looping_texts_stand_apart(experiment):
    looping, other = texts(LOW, HIGH, looping=True), texts(HIGH, LOW)
    found = measured(experiment, {"a": looping + other, "b": looping + other})
    assert found.looping == 0.5
    outcomes = [judged(replace(found, group=group), claim("tree", "chain")) for group in ("looping", "not looping")]
    assert outcomes == [[("reproduced", pytest.approx(2.0))], [("contradicted", pytest.approx(0.5))]]


def test_a_prompt_counts_when_all_ways_have_it(experiment):
    part = [*texts(LOW, HIGH, 2), {"AR": AUTOREGRESSIVE, "chain": LOW}]
    found = measured(experiment, {"a": part, "b": part})
    value = found.value(experiment.blocks[0], "chain", "tau")
    assert (value.mean, value.prompts) == (2.0, 2)


def test_gains_are_over_plain_decoding_or_the_method_that_is_named(experiment):
    over = experiment.result.model_copy(update={"over": {"tree": "chain"}})
    found = measured(replace(experiment, result=over), {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    values = {name: found.value(experiment.blocks[0], name, "gain").mean for name in ("chain", "tree")}
    assert values == {"chain": pytest.approx(100.0), "tree": pytest.approx(100 * (4 / 2 - 1))}


def test_a_speedup_is_plain_decodings_time_over_the_methods(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    assert found.value(experiment.blocks[0], "tree", "speedup") is None
    keep_times(found, {"AR": 2.0, "chain": 1.0, "tree": 0.5})
    assert found.value(experiment.blocks[0], "tree", "speedup").mean == pytest.approx(4.0)
    assert found.value(experiment.blocks[0], "tree", "tokens_per_second").mean == pytest.approx(20.0)
