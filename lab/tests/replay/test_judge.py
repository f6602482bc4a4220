"""Judgements on claims whose values by prompt are given."""

import itertools

import numpy as np
import pytest
from scipy import stats

from drafttree_lab.replay.intervals import Jackknife
from drafttree_lab.replay.judge import Judgement, correct, count_outcomes, judge
from drafttree_lab.replay.paper import Comparison, Order, Trend

ABOUT = {"id": "x", "text": "it is so", "line": 1, "metric": "tau"}
PROMPTS = 12


def judged(claim, values, axis=(), prompts=PROMPTS):
    """The judgement on methods with these values by prompt."""
    jackknife = Jackknife({"a": prompts})

    def means(name, _metric):
        return jackknife.mean([("a", [(value, 1.0) for value in values[name]])])

    return judge(claim, means, jackknife, axis, prompts)


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
    assert taken.said == "1.20 [1.01, 1.43]; p is 0.30 with Holm's correction for 16 main claims"
    # at p = 0.3 for 0.03 the level is 0.05 / 10, whose quantile of the normal law is 2.81, over 2.17 of p
    assert taken.needed == int(np.ceil(12 * (stats.norm.isf(0.0025) / stats.norm.isf(0.015)) ** 2))
    assert correct(Judgement("undecided", "x", p=0.5, prompts=12), 1.0, 16).said == "x"


def test_outcomes_are_counted():
    judgements = [Judgement("reproduced", ""), None, Judgement("reproduced", ""), Judgement("not run", "")]
    assert count_outcomes(judgements) == {"reproduced": 2, "not run": 1}
