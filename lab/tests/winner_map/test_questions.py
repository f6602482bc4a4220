"""Questions: the policies they are about, ratios of R, and verdicts in words."""

import pytest

from drafttree.core.cost_curve import Costs
from drafttree.loading import make_policy
from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.winner_map.published import Question, Ratio, answer, questions, verdict
from winner_map.test_grid_costs import counts

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


def test_an_answer_has_the_ratios_of_r():
    question = Question("fast over slow", "fast", "slow", PassCosts(0.1, Costs((1,), (1.0,))))
    found = answer(question, {0.8: {"fast": FAST, "slow": SLOW}, 0.2: {"fast": SLOW, "slow": FAST}})
    rate = {"fast": 24 / (6 * 1.2), "slow": 24 / (12 * 1.2)}
    assert [each.agreement for each in found.ratios] == [0.2, 0.8]
    assert found.ratios[1].estimate == pytest.approx(rate["fast"] / rate["slow"])
    assert found.ratios[0].estimate == pytest.approx(rate["slow"] / rate["fast"])
    assert all(each.low <= each.estimate <= each.high for each in found.ratios)
    assert found.verdict == "holds above agreement 0.40 (2 of 2 decided)"


def ratios(*estimates, margin=0.01):
    """Ratios at agreements 0.2, 0.4 and so on."""
    return [Ratio(0.2 * place, each, each - margin, each + margin) for place, each in enumerate(estimates, start=1)]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "not counted"),
        (ratios(1.2, 1.1), "holds at every agreement (2 of 2 decided)"),
        (ratios(0.9, 0.995), "holds at no agreement (1 of 2 decided)"),
        (ratios(0.9, 1.1, 1.3), "holds above agreement 0.30 (3 of 3 decided)"),
        (ratios(1.3, 1.1, 0.9), "holds below agreement 0.50 (3 of 3 decided)"),
        (ratios(1.1, 0.9, 1.1), "holds at 0.2, 0.6 (3 of 3 decided)"),
    ],
)
def test_a_verdict_says_where_it_holds(found, said):
    assert verdict(found) == said
