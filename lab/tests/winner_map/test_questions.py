"""Questions: the policies they are about, ratios of R, and verdicts in words."""

import pytest

from drafttree.core.cost_curve import Costs
from drafttree.loading import make_policy
from drafttree_lab.graded import CONFIDENCES
from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.replay.intervals import Estimate
from drafttree_lab.winner_map.published import Question, answer, questions, verdict
from winner_map.test_grid_costs import counts

COSTS = PassCosts(0.1, Costs((1,), (1.0,)))
FAST = [counts([4, 4], [9, 9], [2, 2]), counts([3, 5], [9, 9], [2, 2]), counts([4, 4], [9, 9], [2, 2])]
SLOW = [counts([2] * 4, [5] * 4, [2] * 4), counts([2] * 4, [5] * 4, [2] * 4), counts([1, 3] * 2, [5] * 4, [2] * 4)]


def test_the_policies_are_the_papers_with_what_is_asked_changed():
    found = {each.text: each for each in questions()}
    share = found["DynaTree with its history, a* = 0.4, over without"]
    left, right = make_policy(share.left), make_policy(share.right)
    assert (left.target, left.history, right.history) == (0.4, True, False)
    assert left.max_depth == right.max_depth == 9
    robust = [make_policy(found[f"TALON with k = 1 over k = {levels}"].right) for levels in (0, 2, 3)]
    assert [each.robust for each in robust] == [0, 2, 3]
    assert make_policy(found["TALON with k = 1 over k = 0"].left).robust == 1


def by_confidence(*own):
    """Counts by agreement and confidence, from pairs of a fast and a slow policy's texts by agreement."""
    return {
        agreement: {name: {"fast": fast, "slow": slow} for name in CONFIDENCES}
        for agreement, (fast, slow) in zip((0.8, 0.2), own, strict=True)
    }


def test_an_answer_has_the_ratios_of_r_at_every_confidence():
    question = Question("fast over slow", "fast", "slow", COSTS)
    found = answer(question, by_confidence((FAST, SLOW), (SLOW, FAST)))
    rate = {"fast": 24 / (6 * 1.2), "slow": 24 / (12 * 1.2)}
    assert [*found.ratios] == [*CONFIDENCES]
    for ratios in found.ratios.values():
        assert [*ratios] == [0.2, 0.8]
        assert ratios[0.8].value == pytest.approx(rate["fast"] / rate["slow"])
        assert ratios[0.2].value == pytest.approx(rate["slow"] / rate["fast"])
        assert all(each.low <= each.value <= each.high for each in ratios.values())
    assert found.verdict == "fails at 0.2; holds at 0.8"
    assert found.best == found.trends == {}


def test_whether_the_best_setting_rises_is_judged_by_its_ends():
    question = Question("high over low", "fast", "slow", COSTS, {"0.01": "slow", "0.05": "fast"})
    found = answer(question, by_confidence((FAST, SLOW), (SLOW, FAST)))
    assert found.best["calibrated"] == {0.2: "0.01", 0.8: "0.05"}
    ratios = found.ratios["calibrated"]
    assert found.trends["calibrated"].value == pytest.approx(ratios[0.8].value / ratios[0.2].value)
    assert found.verdict == "rises with agreement: holds"
    assert answer(question, by_confidence((SLOW, FAST), (FAST, SLOW))).verdict == "rises with agreement: fails"
    assert answer(question, by_confidence((FAST, SLOW), (FAST, SLOW))).verdict == "rises with agreement: undecided"


def test_the_thresholds_of_talon_are_its_figures():
    (mu,) = (each for each in questions() if each.settings)
    assert [make_policy(spec).margin for spec in mu.settings.values()] == [0.01, 0.02, 0.03, 0.04, 0.05]
    assert (mu.right, mu.left) == (mu.settings["0.01"], mu.settings["0.05"])


ABOVE, BELOW, EITHER = Estimate(1.2, 1.1, 1.3, 0.01), Estimate(0.8, 0.7, 0.9, 0.01), Estimate(1.2, 0.9, 1.5, 0.2)


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ([ABOVE, ABOVE, ABOVE], "holds at every agreement"),
        ([BELOW, BELOW, BELOW], "fails at every agreement"),
        ([ABOVE, EITHER, ABOVE], "undecided at every agreement"),
        ([ABOVE, EITHER, BELOW], "undecided, flips with confidence, at every agreement"),
        ([Estimate(1.2)] * 3, "undecided at every agreement"),
    ],
)
def test_a_claim_is_decided_where_all_confidences_decide_alike(ratios, said):
    found = {name: {0.5: ratio} for name, ratio in zip(CONFIDENCES, ratios, strict=True)}
    assert verdict(Question("a over b", "a", "b", COSTS, ratios=found)) == said
    trends = dict(zip(CONFIDENCES, ratios, strict=True))
    asked = Question("a over b", "a", "b", COSTS, {"1": "b", "2": "a"}, found, trends)
    assert verdict(asked).removeprefix("rises with agreement: ") == said.removesuffix(" at every agreement")


def test_nothing_counted_is_no_verdict():
    assert answer(Question("a over b", "a", "b", COSTS), {}).verdict == "not counted"
