"""Judgements on claims whose values by prompt are given."""

import itertools

import numpy as np
import pytest
from scipy import stats

from drafttree_lab.replay.intervals import Jackknife
from drafttree_lab.replay.judge import COSTS, Evidence, Judgement, correct, count_outcomes, judge
from drafttree_lab.replay.paper import Bound, Comparison, Order, Trend

ABOUT = {"id": "x", "text": "it is so", "line": 1, "metric": "tau"}
PROMPTS = 12


def judged(claim, values, axis=(), prompts=PROMPTS, **others):
    """The judgement on methods with these values by prompt."""
    jackknife = Jackknife({"a": prompts})
    return judge(claim, Evidence(means_of(values, jackknife), jackknife, prompts, **others), axis)


def means_of(values, jackknife):
    """Means of methods with these values by prompt."""
    return lambda name, _metric: jackknife.mean([("a", [(value, 1.0) for value in values[name]])])


def around(centre, spread=0.1, count=PROMPTS, seed=0):
    """Values around a centre."""
    return np.exp(np.log(centre) + np.random.default_rng(seed).normal(0.0, spread, count)).tolist()


def comparison(**changes):
    return Comparison(**ABOUT | {"left": "a", "right": "b", "sign": ">"} | changes)


@pytest.mark.parametrize(
    ("ratio", "sign", "outcome"),
    [
        (1.5, ">", "reproduced"),
        (0.7, ">", "contradicted"),
        (0.7, "<", "reproduced"),
        (1.5, "<", "contradicted"),
        (1.0, ">", "undecided"),
    ],
)
def test_an_interval_on_one_side_decides_a_comparison(ratio, sign, outcome):
    found = judged(comparison(sign=sign), {"a": around(ratio, seed=1), "b": around(1.0)})
    assert found.outcome == outcome
    assert found.low < found.estimate < found.high
    assert found.prompts == PROMPTS


def test_an_undecided_claim_tells_how_many_prompts_would_decide():
    found = judged(comparison(), {"a": around(1.03, seed=1), "b": around(1.0)})
    reach = np.log(found.high / found.low) / 2
    assert found.outcome == "undecided"
    assert found.needed == int(np.ceil(PROMPTS * (reach / abs(np.log(found.estimate))) ** 2))
    assert judged(comparison(), {"a": [2.0] * PROMPTS, "b": [2.0] * PROMPTS}).needed is None


def test_too_few_prompts_decide_nothing():
    values = {"a": around(2.0, count=9, seed=1), "b": around(1.0, count=9)}
    found = judged(comparison(), values, prompts=9)
    assert (found.outcome, found.low, found.p) == ("too few", None, None)
    assert found.said.endswith("on 9 prompts")
    order = Order(**ABOUT, kind="order", methods=["a", "b"])
    assert judged(order, values, prompts=9).outcome == "too few"


@pytest.mark.parametrize("prompts", [{"a": 1}, {"a": 2, "b": 1}])
def test_a_set_of_one_prompt_is_too_small_to_judge_a_fitted_drafter(prompts):
    jackknife = Jackknife(prompts)

    def means(shift):
        values = {"a": [(2.0 + shift, 1.0), (3.0, 1.0)], "b": [(1.0, 1.0)] * 2}
        return lambda name, _: jackknife.mean([(own, values[name][:count]) for own, count in prompts.items()])

    found = judge(comparison(), Evidence(means(0.0), jackknife, jackknife.size, moved=means(0.5)), ())
    assert found.outcome == "too few"


@pytest.mark.parametrize("methods", itertools.permutations("abc"))
def test_an_order_is_judged_by_kendalls_tau_as_scipy_has_it(methods):
    values = {"a": around(4.0, seed=1), "b": around(2.0, seed=2), "c": around(3.0, seed=3)}
    found = judged(Order(**ABOUT, kind="order", methods=list(methods)), values)
    means = [np.mean(values[name]) for name in methods]
    assert found.estimate == pytest.approx(stats.kendalltau([3, 2, 1], means).statistic)
    assert (found.low, found.high) == pytest.approx((found.estimate, found.estimate))  # every pair is decided
    assert found.outcome == ("reproduced" if methods == ("a", "c", "b") else "contradicted")


def test_pairs_that_are_not_decided_widen_the_interval_of_an_order():
    values = {"a": around(4.0, seed=1), "b": around(2.0, seed=2), "c": around(2.01, seed=3)}
    found = judged(Order(**ABOUT, kind="order", methods=["a", "b", "c"]), values)
    assert (found.low, found.high) == pytest.approx((1 / 3, 1.0))
    assert found.outcome == "undecided"


def test_a_trend_compares_the_last_value_of_the_axis_with_the_first():
    values = {"a@1": around(1.0, seed=1), "a@3": around(2.0, seed=2), "b@1": around(2.0, seed=3)}
    values["b@3"] = values["b@1"]
    claim = Trend(**ABOUT, kind="trend", method="a", sign=">")
    found = judged(claim, values, [1, 2, 3])
    assert found.outcome == "reproduced"
    assert found.estimate == pytest.approx(np.mean(values["a@3"]) / np.mean(values["a@1"]))
    over = judged(claim.model_copy(update={"over": "b"}), values, [1, 2, 3])
    assert over.estimate == pytest.approx(found.estimate)


def test_a_bound_may_be_of_a_ratio():
    values = {"a": around(1.1, spread=0.01, seed=1), "b": around(1.0, spread=0.01)}
    about = ABOUT | {"kind": "bound", "method": "a", "over": "b", "sign": ">"}
    found = judged(Bound(**about, bound=1.05), values)
    assert found.outcome == "reproduced"
    assert found.estimate == pytest.approx(np.mean(values["a"]) / np.mean(values["b"]) / 1.05)
    assert found.said.startswith("(a / b) / 1.05 1.0")
    assert judged(Bound(**about, bound=1.2), values).outcome == "contradicted"


def test_a_claim_that_hangs_on_an_open_number_is_left_open_where_others_differ():
    values = {"b": around(1.0), "a": around(0.7, seed=1), "low": around(1.5, seed=2), "same": around(0.6, seed=3)}
    own = comparison(hangs_on="a*, here 0.7", others={"a* = 0.4": "low"})
    found = judged(own, values)
    assert found.outcome == "left open"
    assert "; the paper does not tell a*, here 0.7: at a* = 0.4 1.5" in found.said
    settled = judged(own.model_copy(update={"others": {"a* = 0.9": "same"}}), values)
    assert settled.outcome == "contradicted"
    values["unsure"] = around(1.0, seed=4)
    unsure = judged(own.model_copy(update={"others": {"a* = 0.9": "unsure"}}), values)
    assert unsure.outcome == "contradicted"  # another value that decides nothing contradicts nothing


def test_the_correction_takes_back_what_it_does_not_bear():
    found = Judgement("reproduced", "1.20 [1.01, 1.43]", 1.2, 1.01, 1.43, 0.03, 12, reason="tau decides")
    assert correct(found, 0.04, 16) == found
    taken = correct(found, 0.3, 16)
    assert (taken.outcome, taken.reason) == ("undecided", None)
    assert taken.said == "1.20 [1.01, 1.43]; p is 0.30 with Holm's correction for 16 claims"
    # at p = 0.3 for 0.03 the level is 0.05 / 10, whose quantile of the normal law is 2.81, over 2.17 of p
    assert taken.needed == int(np.ceil(12 * (stats.norm.isf(0.0025) / stats.norm.isf(0.015)) ** 2))
    assert correct(Judgement("undecided", "x", p=0.5, prompts=12), 1.0, 16).said == "x"


def test_the_error_of_the_papers_costs_widens_the_interval_and_is_named_where_it_leaves_a_claim_undecided():
    values = {"a": around(1.2, seed=1), "b": around(1.0)}
    alone = judged(comparison(), values)
    jackknife = Jackknife({"a": PROMPTS})
    draws = [means_of({**values, "a": [factor * each for each in values["a"]]}, jackknife) for factor in (0.7, 1 / 0.7)]
    found = judged(comparison(), values, draws=draws, draws_freedom=7)
    # by hand: the variance of the logarithm is that of the jackknife and log(0.7)^2, by Satterthwaite's freedom
    logs = np.log(alone.high / alone.low) / 2 / stats.t.ppf(0.975, PROMPTS - 1)
    parts = np.array([logs**2, np.log(0.7) ** 2])
    freedom = parts.sum() ** 2 / (parts**2 / [PROMPTS - 1, 7]).sum()
    reach = stats.t.ppf(0.975, freedom) * np.sqrt(parts.sum())
    assert (alone.outcome, found.outcome) == ("reproduced", "undecided")
    assert (found.low, found.high) == pytest.approx((alone.estimate * np.exp(-reach), alone.estimate * np.exp(reach)))
    assert f"it is not known well enough {COSTS}: p is {alone.p:.3f} without that error" in found.said
    assert found.needed is None  # more prompts make no cost of the paper's surer


def test_the_error_of_the_drafters_agreement_counts_as_much_as_it_moves_the_ratio():
    values = {"a": around(1.2, seed=1), "b": around(1.0)}
    jackknife = Jackknife({"a": PROMPTS})
    same = means_of({name: [2 * each for each in own] for name, own in values.items()}, jackknife)
    assert judged(comparison(), values, moved=same, moved_freedom=9) == judged(comparison(), values)
    other = means_of({**values, "b": [1.3 * each for each in values["b"]]}, jackknife)
    assert judged(comparison(), values, moved=other, moved_freedom=9).outcome == "undecided"


def test_claims_on_the_same_ratio_or_its_inverse_have_one_datum():
    values = {"a": around(1.2, seed=1), "b": around(1.0), "c": around(1.2, seed=2)}
    found = judged(comparison(), values)
    assert found.datum == judged(comparison(left="b", right="a", sign="<"), values).datum
    assert found.datum != judged(comparison(left="c"), values).datum
    assert judged(comparison(right="a"), values).datum is None


def test_an_order_is_decided_from_the_level_of_its_p_value_on():
    values = {"a": around(1.5, seed=1), "b": around(1.25, seed=2), "c": around(1.0, seed=3)}
    found = judged(Order(**ABOUT, kind="order", methods=["a", "b", "c"]), values)
    pairs = [judged(comparison(left=left, right=right), values).p for left, right in ("ab", "ac", "bc")]
    # three pairs stand as claimed; with the two surest decided, the third may stand either way and tau is 1/3 or more
    assert found.p == pytest.approx(max(pairs))
    assert found.outcome == ("reproduced" if found.p <= 0.05 else "undecided")


def test_outcomes_are_counted():
    judgements = [Judgement("reproduced", ""), None, Judgement("reproduced", ""), Judgement("not run", "")]
    judgements.append(Judgement("reproduced", "", repeats="talon/1"))
    assert count_outcomes(judgements) == {"reproduced": 2, "not run": 1}
