"""R from counts, and the same costs for the policy that weighs them."""

import pytest

from drafttree_lab.replay.costs import PassCosts
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.winner_map.published import FREE, linear_costs, speedups
from drafttree_lab.winner_map.winner_map import cost_curve, cost_grid


def counts(committed, nodes, passes):
    """Counts of a text by its rounds."""
    rounds = len(committed)
    return TextCounts([], committed, [0] * rounds, nodes, passes, passes, [[]] * rounds, False)


def test_r_is_tokens_by_cost():
    texts = [counts([3, 1], [5, 1], [2, 0]), counts([4], [9], [3])]
    costs = PassCosts(0.1, linear_costs(0.02))
    spent = (1 + 0.02 * 4 + 0.2) + 1 + (1 + 0.02 * 8 + 0.3)
    left_out = [4 / (1 + 0.02 * 8 + 0.3), 4 / (spent - (1 + 0.02 * 8 + 0.3))]
    assert speedups(costs, texts).tolist() == pytest.approx([8 / spent, *left_out])
    assert speedups(PassCosts(0.4, linear_costs(0.07)), [counts([1] * 5, [1] * 5, [0] * 5)])[0] == 1
    assert speedups(FREE, texts)[0].item() == pytest.approx(8 / 3)


@pytest.mark.parametrize(("draft_cost", "slope"), cost_grid())
def test_auto_weighs_the_same_costs(draft_cost, slope):
    curve = cost_curve(draft_cost, slope)
    total = PassCosts(draft_cost, linear_costs(slope)).total(counts([4], [9], [3]))
    assert curve.round(9, (1, 4, 4)) == pytest.approx(total)
    assert curve.plain_round == 1
