"""Judgements on claims whose values by prompt are given."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from drafttree_lab.replay.intervals import Jackknife
from drafttree_lab.replay.judge import AGREEMENT, COSTS, Correction, Evidence, Judgement, correct, count_outcomes, judge
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
    assert found.outcome == "undecided"
    # as often as the root of the prompts has to grow, by the normal law, for p to be 0.05 / 20
    share = (stats.norm.isf(0.0025 / 2) / stats.norm.isf(found.p / 2)) ** 2
    assert correct(found, Correction(1.0, 20)).needed == int(np.ceil(PROMPTS * share))
    same = judged(comparison(), {"a": [2.0] * PROMPTS, "b": [2.0] * PROMPTS})
    assert correct(same, Correction(1.0, 20)).needed is None


def test_where_more_prompts_would_not_decide_the_cause_is_named():
    values, jackknife = {"a": around(1.2, seed=1), "b": around(1.0)}, Jackknife({"a": PROMPTS})
    moved = means_of({**values, "b": [1.04 * each for each in values["b"]]}, jackknife)
    found = judged(comparison(), values, moved=moved, moved_freedom=9)
    alone = 2 * stats.t.sf(np.log(found.estimate) / np.log(1.04), 9)  # the error of the agreement alone
    assert found.floors[AGREEMENT] == pytest.approx(alone)
    taken = correct(found, Correction(1.0, 100))
    assert (taken.outcome, taken.needed) == ("undecided", None)
    assert taken.said.endswith(f"more prompts alone would not decide it, as it is not known well enough {AGREEMENT}")
    few = correct(found, Correction(1.0, 2))  # at 0.05 / 2 they would
    assert few.needed is not None
    assert AGREEMENT not in few.said


def test_a_claim_over_several_methods_is_contradicted_only_with_a_correction_for_their_number():
    rivals = ["b", "c", "d", "e"]
    claim, jackknife = comparison(right=rivals), Jackknife({"a": PROMPTS})
    generator, found = np.random.default_rng(0), []
    for _ in range(400):  # all methods are equal
        values = {name: np.exp(generator.normal(0.0, 0.2, PROMPTS)).tolist() for name in ["a", *rivals]}
        found.append(judge(claim, Evidence(means_of(values, jackknife), jackknife, PROMPTS), ()).outcome)
    assert found.count("contradicted") / len(found) <= 0.05
    values = {"a": around(1.5, seed=1), "b": around(1.0), "c": around(1.1, seed=2)}
    least = judged(comparison(right=["b", "c"]), values)
    assert least.said.startswith("a / c ")  # all have to be behind for sure: the least sure one decides, as it is
    assert least.p == judged(comparison(right="c"), values).p
    worst = judged(comparison(left="b", right=["a", "c"]), values)
    assert worst.p == pytest.approx(2 * judged(comparison(left="b", right="a"), values).p)


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
    assert re.fullmatch(
        r"Kendall's tau [\d.]+ \[0\.33, 1\.00\]; undecided: b / c [\d.]+ \[0\.\d\d, 1\.\d\d\]", found.said
    )


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
    assert correct(found, Correction(0.04, 16)) == replace(found, claims=16)
    taken = correct(found, Correction(0.3, 16))
    assert (taken.outcome, taken.reason) == ("undecided", None)
    assert taken.said == "1.20 [1.01, 1.43]; p is 0.30 with Holm's correction for 16 claims"
    # at p = 0.3 for 0.03 the level is 0.05 / 10, whose quantile of the normal law is 2.81, over 2.17 of p
    assert taken.needed == int(np.ceil(12 * (stats.norm.isf(0.0025) / stats.norm.isf(0.015)) ** 2))
    assert correct(Judgement("undecided", "x", p=0.5, prompts=12), Correction(1.0, 16)).said == "x"


def test_the_joint_figure_stands_beside_the_papers_and_decides_nothing():
    found = Judgement("reproduced", "1.06 [1.02, 1.10]", 1.06, 1.02, 1.10, 0.002, 20)
    kept = correct(found, Correction(0.036, 18), Correction(0.16, 82))
    assert (kept.outcome, kept.joint) == ("reproduced", 0.16)
    said = "1.06 [1.02, 1.10]; p is 0.04 with Holm's correction for 18 claims of the paper, 0.16 for 82 of all papers"
    assert kept.said == said


def drawn_of(values, jackknife, factors):
    """Means with a method `a` that is faster by each of some factors."""

    def mean(name, _metric):
        factor = np.array(factors) if name == "a" else 1.0
        return jackknife.mean([("a", [(value * factor, 1.0 + 0 * np.array(factors)) for value in values[name]])])

    return mean


def test_a_claim_that_holds_at_all_costs_that_the_paper_allows_is_decided():
    values, jackknife = {"a": around(1.5, spread=0.02, seed=1), "b": around(1.0, spread=0.02)}, Jackknife({"a": 12})
    factors = np.linspace(0.8, 1.4, 201)
    found = judged(comparison(), values, drawn=drawn_of(values, jackknife, factors))
    low, high = (found.estimate * np.quantile(factors, end) for end in (0.025, 0.975))
    assert (found.outcome, found.floors[COSTS]) == ("reproduced", 0.0)
    assert f", {low:.2f} to {high:.2f} by what the paper's rows allow its passes to cost" in found.said
    # by hand: the intervals of the prompts at both ends
    ends = [judged(comparison(), {**values, "a": [each * factor for each in values["a"]]}) for factor in (0.815, 1.385)]
    assert (found.low, found.high) == pytest.approx((ends[0].low, ends[1].high), rel=1e-6)
    assert found.p == pytest.approx(ends[0].p)


def test_a_claim_that_flips_within_the_costs_that_the_paper_allows_is_undecided():
    values, jackknife = {"a": around(1.2, spread=0.02, seed=1), "b": around(1.0, spread=0.02)}, Jackknife({"a": 12})
    found = judged(comparison(), values, drawn=drawn_of(values, jackknife, np.linspace(0.7, 1.4, 201)))
    assert judged(comparison(), values).outcome == "reproduced"
    assert (found.outcome, found.p, found.floors[COSTS]) == ("undecided", 1.0, 1.0)
    told = correct(found, Correction(1.0, 10))
    assert told.needed is None  # more prompts make no cost of the paper's surer
    assert told.said.endswith(COSTS)


def test_the_error_of_the_drafters_agreement_counts_as_much_as_it_moves_the_ratio():
    values = {"a": around(1.2, seed=1), "b": around(1.0)}
    jackknife = Jackknife({"a": PROMPTS})
    same = means_of({name: [2 * each for each in own] for name, own in values.items()}, jackknife)
    assert judged(comparison(), values, moved=same, moved_freedom=9) == judged(comparison(), values)
    other = means_of({**values, "b": [1.3 * each for each in values["b"]]}, jackknife)
    assert judged(comparison(), values, moved=other, moved_freedom=9).outcome == "undecided"


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
