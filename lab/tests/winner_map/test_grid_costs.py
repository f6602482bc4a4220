"""R from counts, and the same costs for the policy that weighs them."""

import pytest

from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.winner_map.winner_map import GridCosts, cost_grid, tau


def counts(committed, nodes, passes):
    """Counts of a text by its rounds."""
    rounds = len(committed)
    return TextCounts([], committed, [0] * rounds, nodes, passes, passes, [[]] * rounds, False)


def test_r_is_tokens_by_cost():
    texts = [counts([3, 1], [5, 1], [2, 0]), counts([4], [9], [3])]
    costs = GridCosts(draft=0.1, slope=0.02)
    spent = (1 + 0.02 * 4 + 0.2) + 1 + (1 + 0.02 * 8 + 0.3)
    assert costs.speedup(texts) == pytest.approx(8 / spent)
    assert GridCosts(0.4, 0.07).speedup([counts([1] * 5, [1] * 5, [0] * 5)]) == 1
    assert tau(texts) == pytest.approx(8 / 3)


@pytest.mark.parametrize("costs", cost_grid())
def test_auto_weighs_the_same_costs(costs):
    text = counts([4], [9], [3])
    assert costs.curve.round(9, (1, 4, 4)) == pytest.approx(costs.fraction(text)[1])
    assert costs.curve.plain_round == 1
