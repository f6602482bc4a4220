import itertools

import pytest

from drafttree import DraftTree
from drafttree.engine.batching.level_limit import RETRY, LevelLimit, best_levels


def chain(levels: int) -> DraftTree:
    """A chain of so many drafted nodes."""
    zeros = [0.0] * (levels + 1)
    return DraftTree([*range(levels + 1)], [*range(-1, levels)], zeros, zeros, levels)


def test_the_best_number_of_levels_maximises_tokens_by_time():
    reached, nodes = [0.8, 0.6, 0.3, 0.1], [2.0, 3.0, 3.0, 3.0]

    def target(rows: int) -> float:
        return 1 + rows / 20

    def level(width: int) -> float:
        return 0.05 + width / 100

    rates = []
    for depth in range(1, 5):
        widths = [4.0, *(4 * each for each in nodes[: depth - 1])]
        spent = sum(level(round(width)) for width in widths)
        rows = 4 + round(sum(4 * each for each in nodes[:depth]))
        rates.append((4 + 4 * sum(reached[:depth])) / (target(rows) + spent))
    assert best_levels(reached, nodes, 4, 4, target, level) == 1 + rates.index(max(rates))


def test_deep_levels_are_left_out_where_they_are_seldom_reached():
    limit = LevelLimit()
    for _ in range(40):
        limit.observe(chain(4), 1)
    assert limit.choose(8, 8, lambda rows: float(rows), lambda width: 1.0) == 1


def test_all_levels_are_drafted_where_they_cost_nothing():
    limit = LevelLimit()
    for _ in range(40):
        limit.observe(chain(4), 4)
    assert limit.choose(8, 8, lambda rows: 1.0, lambda width: 0.0) == 4


def test_there_is_no_limit_before_the_first_round_and_now_and_then():
    limit = LevelLimit()
    assert limit.choose(1, 1, lambda rows: 1.0, lambda width: 1.0) is None
    limit.observe(chain(2), 0)
    chosen = [limit.choose(1, 1, lambda rows: 1.0, lambda width: 1.0) for _ in itertools.repeat(None, 2 * RETRY)]
    assert chosen.count(None) == 2


@pytest.mark.parametrize("accepted", [0, 3])
def test_levels_that_come_later_begin_with_what_they_show(accepted):
    limit = LevelLimit()
    limit.observe(chain(1), 0)
    limit.observe(chain(3), accepted)
    expected = 3 if accepted else 1
    assert limit.choose(1, 1, lambda rows: 1.0, lambda width: 0.01) == expected
