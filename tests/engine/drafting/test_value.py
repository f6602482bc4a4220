"""How many nodes, how wide a level and what shape are worth most, against a search over all of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttree.engine.drafting.value import best_count, best_shape, best_width

chances = st.lists(st.floats(0.0, 1.0), max_size=8).map(lambda found: sorted(found, reverse=True))
costs = st.lists(st.floats(0.0, 0.5), min_size=12, max_size=12).map(lambda steps: [*itertools.accumulate(steps)])
rates = st.floats(0.0, 4.0)


def value(nodes: list[float], costs: list[float], rate: float) -> float:
    return sum(nodes) - rate * costs[len(nodes)]


@given(chances, costs, rates)
def test_no_other_count_is_worth_more(chances, costs, rate):
    count, found = best_count(chances, costs, rate)
    assert found == pytest.approx(value(chances[:count], costs, rate), abs=1e-9)
    assert found >= max(value(chances[:size], costs, rate) for size in range(len(chances) + 1)) - 1e-9


def test_there_are_no_more_nodes_than_costs_and_a_step_is_filled():
    assert best_count([0.9] * 9, [1.0, 1.0, 1.0], 1.0)[0] == 2
    assert best_count([0.5, 0.4, 0.3, 0.2], [1.0, 1.6, 1.6, 1.6, 9.0], 1.0)[0] == 3  # the first alone is not worth it


def test_a_dearer_rate_never_keeps_more_nodes():
    counts = [best_count([0.8, 0.5, 0.3, 0.1], [1.0, 1.2, 1.4, 1.6, 1.8], rate)[0] for rate in (0.1, 1, 2, 3, 9)]
    assert counts == sorted(counts, reverse=True)
    assert {counts[0], counts[-1]} == {4, 0}


def width(leaves: list[float], level: float, row: float = 0.0, wide: float = 0.0, rate: float = 1.0) -> int:
    costs = [1.0 + row * nodes for nodes in range(40)]
    return best_width(leaves, leaves, [0.6, 0.2], costs, lambda width: level + wide * width, rate)


def test_a_level_is_drafted_where_its_nodes_are_worth_its_pass():
    assert width([0.5], level=0.39) == 1  # 0.5 * (0.6 + 0.2) tokens
    assert width([0.5], level=0.41) == 0
    assert width([0.5], level=0.39, rate=1.1) == 0
    assert width([], level=0.0) == 0


def test_nodes_not_worth_their_rows_do_not_count():
    assert width([0.5], level=0.15, row=0.11) == 1  # 0.3 - 0.11 of one child, none of the other
    assert width([0.5], level=0.2, row=0.11) == 0


def test_a_level_is_as_wide_as_pays():
    leaves = [0.5, 0.4, 0.3, 0.2]
    assert width(leaves, level=0.1) == 4
    assert width(leaves, level=0.1, wide=0.29) == 2  # the third would add 0.24
    assert width(leaves, level=0.0, wide=0.35) == 1


@given(chances, st.floats(0.0, 0.5), st.floats(0.0, 0.3), st.floats(0.0, 0.1))
def test_a_width_that_is_found_pays(leaves, level, wide, row):
    found = width(leaves, level, row, wide)
    assert 0 <= found <= len(leaves)
    if found:
        assert 0.8 * sum(leaves[:found]) > level + wide * found


def shape(rates: list[float], depth: int = 8, row: float = 0.01, level: float = 0.05, rate: float = 1.0):
    return best_shape(lambda number: rates, depth, [1 + row * nodes for nodes in range(32)], lambda width: level, rate)


def test_a_shape_is_as_deep_and_wide_as_pays():
    assert shape([0.6])[0] == 5  # 0.6 ** 5 tokens are worth 0.05 and a row, 0.6 ** 6 are not
    assert shape([0.6], depth=2)[0] == 2
    assert shape([0.6, 0.3], level=9.0) == (1, 0.3)
    assert shape([0.6, 0.3], level=9.0, row=0.4) == (1, 0.6)
    assert shape([0.1], row=9.0) == (1, 0.1)  # one node is drafted, whatever it costs


@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=3), rates)
def test_a_shape_has_a_level_and_a_node(rates, rate):
    levels, floor = shape(sorted(rates, reverse=True), rate=rate)
    assert 1 <= levels <= 8
    assert 0 < floor <= 1


@pytest.mark.parametrize(("rates", "costs"), [([0.6], [1.0]), ([], [1.0, 1.1])], ids=["no room", "no candidates"])
def test_a_shape_without_nodes_is_the_root(rates, costs):
    assert best_shape(lambda number: rates, 8, costs, lambda width: 0.1, 1.0) == (1, 1.0)
