"""What given cells amount to: values and verdicts, with claims on values of an axis and on sets."""

from dataclasses import replace

import pytest

from drafttree.core.cost_curve import Costs
from drafttree.policies import Chain
from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.replay.paper import Bound, Comparison, Trend
from drafttree_lab.replay.plan import Block, ReplayMethod, Setting
from drafttree_lab.replay.verdicts import judge_claims
from lab_helpers.replay_cells import counted, keep_times, measured, plain

AUTOREGRESSIVE = plain(4)
LOW, HIGH = counted([1, 1]), counted([3, 3])


def claim(left, right, **changes):
    about = {"id": "x", "text": "so", "line": 1, "metric": "tau", "left": left, "right": right, "sign": ">"}
    return Comparison(**about | changes)


def judged(found, *claims):
    """Outcome and estimate of claims."""
    result = found.experiment.result.model_copy(update={"claims": list(claims)})
    verdicts = judge_claims(replace(found, experiment=replace(found.experiment, result=result)))
    return [(each.by_counts.outcome, each.by_counts.estimate) for each in verdicts]


def texts(chain, tree, count=5, **options):
    return [{"AR": plain(4, **options), "chain": chain, "tree": tree}] * count


def test_a_claim_may_compare_two_sets(experiment):
    found = measured(experiment, {"a": texts(LOW, LOW), "b": texts(LOW, HIGH)})
    assert judged(found, claim("tree@b", "tree@a"), claim("tree", "chain")) == [
        ("reproduced", pytest.approx(4 / 2)),
        ("reproduced", pytest.approx((2 + 4) / 2 / 2)),
    ]


def test_a_claim_may_compare_two_policies_of_an_axis(experiment):
    ways = {"AR": ReplayMethod(None, Chain())} | {
        f"tree@{depth}": ReplayMethod("toy", Chain(depth=depth)) for depth in (2, 3)
    }
    swept = replace(experiment, blocks=[replace(experiment.blocks[0], ways=ways)])
    found = measured(swept, {"a": [{"AR": AUTOREGRESSIVE, "tree@2": LOW, "tree@3": HIGH}] * 10})
    assert judged(found, claim("tree@2", "tree@3")) == [("contradicted", pytest.approx(0.5))]


def test_a_claim_may_compare_two_settings_of_an_axis(experiment):
    ways = experiment.blocks[0].ways
    blocks = [Block(Setting("a", 0.0, length, None), length, ways) for length in (50, 100)]
    found = measured(replace(experiment, blocks=blocks), {"a@50": texts(LOW, LOW, 10), "a@100": texts(LOW, HIGH, 10)})
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


def test_a_speedup_is_tokens_per_second_over_plain_decodings(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    assert found.value(experiment.blocks[0], "tree", "speedup") is None
    keep_times(found, {"AR": 2.0, "chain": 1.0, "tree": 0.5})
    assert found.value(experiment.blocks[0], "tree", "speedup").mean == pytest.approx(4.0)
    assert found.value(experiment.blocks[0], "tree", "tokens_per_second").mean == pytest.approx(20.0)


def test_a_speedup_is_the_ratio_of_mean_speeds_not_the_mean_of_ratios(experiment):
    # two texts of 10 tokens: plain decoding takes 1 and 4 seconds, the tree 0.5 and 4
    found = measured(experiment, {"a": texts(LOW, HIGH, 2), "b": texts(LOW, HIGH, 2)})
    keep_times(found, {"AR": [1.0, 4.0], "chain": [1.0, 4.0], "tree": [0.5, 4.0]})
    assert found.value(experiment.blocks[0], "tree", "speedup").mean == pytest.approx((20 + 2.5) / (10 + 2.5))
    pooled = replace(found, experiment=replace(experiment, averages={"tokens_per_second": "total"}))
    assert pooled.value(experiment.blocks[0], "tree", "speedup").mean == pytest.approx((20 / 4.5) / (20 / 5))


def speed(**changes):
    return claim("tree", "chain", **{"metric": "speedup"} | changes)


def both(found, own):
    """Both outcomes of a claim."""
    result = found.experiment.result.model_copy(update={"claims": [own]})
    (verdict,) = judge_claims(replace(found, experiment=replace(found.experiment, result=result)))
    return verdict.by_counts, verdict.by_time


@pytest.fixture
def priced(experiment):
    """The experiment with a draft pass of a tenth of a target pass, and trees of 4 nodes at 1.3."""
    target = Costs((1, 4), (1.0, 1.3))
    costs = {"AR": PassCosts(0.0, target), "chain": PassCosts(0.1, target), "tree": PassCosts(0.1, target)}
    return replace(experiment, costs=costs)


def test_counts_judge_by_the_papers_costs_and_times_by_the_machine(priced):
    found = measured(priced, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    by_counts, by_time = both(found, speed())
    assert (by_counts.outcome, by_counts.estimate) == ("reproduced", pytest.approx(4 / 2))
    assert by_time.outcome == "not run"
    keep_times(found, {"AR": 1.0, "chain": 1.0, "tree": 2.0})
    by_counts, by_time = both(found, speed())
    assert (by_counts.outcome, by_time.outcome) == ("reproduced", "contradicted")
    assert by_time.estimate == pytest.approx(0.5)
    value = found.value(found.experiment.blocks[0], "tree", "speedup", by_counts=True)
    assert value.mean == pytest.approx(4 / (1.3 + 0.3))


def test_without_the_papers_costs_counts_do_not_judge_a_speed(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    by_counts, _ = both(found, speed())
    assert (by_counts.outcome, by_counts.said) == (
        "not run",
        "the cost of the draft passes of tree is not known: the paper does not tell it",
    )


def test_a_contradiction_says_which_term_decides(priced):
    found = measured(priced, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    by_counts, _ = both(found, speed(sign="<"))
    assert by_counts.reason == (
        "tau decides (tree: tau 4.00, v 1.30 over 4 nodes, c delta 0.30; "
        "chain: tau 2.00, v 1.30 over 4 nodes, c delta 0.30)"
    )
    shares, _ = both(found, claim("tree", "chain", sign="<"))
    assert shares.reason == (
        "the accepted share decides (tree: 3.00 levels a round, 3.00 accepted; "
        "chain: 3.00 levels a round, 1.00 accepted)"
    )


def test_a_claim_may_compare_two_metrics_of_a_method(experiment):
    deep = counted([3, 3], ranks=[[1, 1, 1], [4, 2, 3]])
    found = measured(experiment, {"a": texts(LOW, deep), "b": texts(LOW, deep)})
    own = claim("tree", "tree", metric="first_ranks_below", right_metric="first_ranks_at_level_1")
    assert judged(found, own) == [("reproduced", pytest.approx((3 / 4) / (1 / 2)))]


def test_a_claim_may_have_a_bound(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    keep_times(found, {"AR": 1.0, "chain": 1.0, "tree": 1.0})
    own = Bound(kind="bound", id="x", text="so", line=1, metric="overhead_share", method="tree", sign="<", bound=0.05)
    by_counts, by_time = both(found, own)
    assert by_counts is None
    assert (by_time.outcome, by_time.estimate) == ("reproduced", pytest.approx(0.002 * 5 / 1.0 / 0.05))


def test_the_gap_to_the_oracle_is_of_tokens_and_passes(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    assert found.value(experiment.blocks[0], "chain", "oracle_gap").mean == pytest.approx(1.0)  # 2 tokens, 3 passes
    assert found.value(experiment.blocks[0], "tree", "oracle_gap").mean == pytest.approx(1.0)  # 4 tokens, 3 passes


def test_one_prompt_has_a_value_and_no_interval(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH, 1), "b": texts(LOW, HIGH, 1)})
    value = found.value(experiment.blocks[0], "tree", "tau")
    assert (value.mean, value.low, value.high, value.prompts) == (4.0, None, None, 1)


def test_a_claim_on_one_set_rests_on_the_prompts_of_that_set(experiment):
    found = measured(experiment, {"a": texts(LOW, HIGH, 20), "b": texts(LOW, HIGH, 6)})
    own = both(found, claim("tree@b", "chain@b"))[0]
    assert (own.outcome, own.prompts) == ("too few", 6)
    other = both(found, claim("tree@a", "chain@a"))[0]
    assert (other.outcome, other.prompts) == ("reproduced", 20)


def test_a_trend_over_one_value_is_not_run(experiment):
    ways = experiment.blocks[0].ways
    one = replace(experiment, blocks=[Block(Setting("a", 0.0, 50, None), 50, ways)])
    own = Trend(kind="trend", id="x", text="so", line=1, metric="tau", method="tree", sign=">")
    assert both(measured(one, {"a@50": texts(LOW, HIGH, 10)}), own)[0].outcome == "not run"


def test_a_trend_that_is_contradicted_names_the_term_that_pulls_it_down(priced):
    ways = priced.blocks[0].ways
    blocks = [Block(Setting("a", 0.0, length, None), length, ways) for length in (50, 100)]
    found = measured(replace(priced, blocks=blocks), {"a@50": texts(LOW, HIGH, 10), "a@100": texts(LOW, LOW, 10)})
    own = Trend(kind="trend", id="x", text="so", line=1, metric="speedup", method="tree", sign=">")
    by_counts, _ = both(found, own)
    assert by_counts.outcome == "contradicted"
    assert by_counts.reason.startswith("tau decides (tree@50: tau 4.00")


@pytest.mark.parametrize(
    ("sign", "left", "outcome", "ratio"),
    [(">", "tree", "reproduced", 4 / 2), (">", "chain", "contradicted", 2 / 4), ("<", "AR", "reproduced", 1 / 2)],
)
def test_a_method_is_ahead_of_several_if_it_is_ahead_of_the_one_nearest_to_it(experiment, sign, left, outcome, ratio):
    found = measured(experiment, {"a": texts(LOW, HIGH), "b": texts(LOW, HIGH)})
    others = [name for name in ("AR", "chain", "tree") if name != left]
    assert judged(found, claim(left, others, sign=sign)) == [(outcome, pytest.approx(ratio))]
