"""Sizes, widths and limits against exhaustive search."""

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.core.cost_curve import Costs
from drafttree.policies.calibration import CLASSES, DEPTHS
from drafttree.policies.tree_value import best_limits, best_size, best_width

chances = st.floats(0.001, 0.999)
rates = st.floats(0, 3)
steps = st.lists(st.floats(0, 0.6), min_size=12, max_size=12)
some = settings(max_examples=60)


def costs_of(steps: Sequence[float]) -> list[float]:
    """Costs of passes over 0, 1, 2 ... nodes, each by its step above the one before."""
    return [math.nan, *itertools.accumulate(steps, initial=1.0)]


def value(tree: Sequence[float], costs: Sequence[float], rate: float) -> float:
    """Of the drafted nodes of a tree, by their probabilities of acceptance."""
    return sum(tree) - rate * costs[1 + len(tree)]


@st.composite
def random_trees(draw):
    """The parents of up to eight drafted nodes, and the probabilities that they are accepted; none above its parent."""
    parents, accepted = list[int](), [1.0]
    for node in range(draw(st.integers(0, 8))):
        parents.append(draw(st.integers(0, node)))
        accepted.append(accepted[parents[-1]] * draw(chances))
    return parents, accepted[1:]


def subtrees(parents: Sequence[int]):
    """The drafted nodes of every connected tree that has the root."""
    for count in range(len(parents) + 1):
        for nodes in itertools.combinations(range(1, len(parents) + 1), count):
            if all(parents[node - 1] in (0, *nodes) for node in nodes):
                yield nodes


@some
@given(random_trees(), steps, rates)
def test_the_best_size_is_that_of_the_best_connected_tree(tree, steps, rate):
    parents, accepted = tree
    costs = costs_of(steps)
    size, found = best_size(sorted(accepted, reverse=True), costs, rate)
    best = max(value([accepted[node - 1] for node in nodes], costs, rate) for nodes in subtrees(parents))
    assert found == pytest.approx(best, abs=1e-9)
    assert value(sorted(accepted, reverse=True)[: size - 1], costs, rate) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("costs", "rate", "size"),
    [
        ([math.nan, 1.0, 1.0, 1.0, 1.0], 1.0, 4),  # what is free is taken
        ([math.nan, 1.0, 2.0, 3.0, 4.0], 1.0, 1),  # what is dear is not
        ([math.nan, 1.0, 1.5, 2.0, 2.5], 1.0, 2),
        ([math.nan, 1.0, 1.5, 2.0, 2.5], 0.5, 4),
        ([math.nan, 1.0, 1.8, 1.8, 1.8], 1.0, 4),  # three together pay for a step that one does not
        ([math.nan, 1.0, 1.0], 1.0, 2),  # no tree is larger than the costs go
    ],
)
def test_the_size_follows_the_costs(costs, rate, size):
    assert best_size([0.7, 0.4, 0.3], costs, rate)[0] == size


def width_value(width: int, leaves, accepted, children, costs, draft: Costs, rate: float) -> float:
    """What a tree is worth whose best leaves are expanded, by the best of all its sizes."""
    grown = sorted([*accepted, *(leaf * child for leaf in leaves[:width] for child in children)], reverse=True)
    best = max(value(grown[:count], costs, rate) for count in range(min(len(grown), len(costs) - 2) + 1))
    return best - (rate * draft.at(width) if width else 0.0)


@some
@given(
    st.lists(chances, max_size=7).map(lambda found: sorted(found, reverse=True)),
    st.lists(chances, max_size=4),
    st.lists(st.floats(0, 0.9), min_size=1, max_size=3).map(lambda found: sorted(found, reverse=True)),
    steps,
    st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
    rates,
)
def test_the_best_width_pays_more_than_none_and_than_half_or_twice_of_it(leaves, earlier, children, steps, draft, rate):
    accepted, costs, drafting = [*earlier, *leaves], costs_of(steps), Costs((1, 8), (draft[0], sum(draft)))
    widths = [width for width in (0, 1, 2, 4) if width < len(leaves)] + [len(leaves)]
    worth = {width: width_value(width, leaves, accepted, children, costs, drafting, rate) for width in widths}
    found = best_width(leaves, accepted, children, costs, drafting, rate)
    assert found in widths
    place = widths.index(found)
    for other in (0, *widths[max(place - 1, 0) : place + 2]):
        assert worth[found] >= worth[other] - 1e-9
    if not found:
        assert max(worth.values()) <= worth[0] + 1e-9


@pytest.mark.parametrize(
    ("drafting", "rate", "width"),
    [((0.0, 0.0), 1.0, 3), ((0.1, 0.9), 1.0, 1), ((0.9, 0.9), 1.0, 0), ((0.9, 0.9), 0.1, 3)],
)
def test_the_width_follows_the_cost_of_drafting(drafting, rate, width):
    free = costs_of([0.0] * 12)
    assert best_width([0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.6], free, Costs((1, 3), drafting), rate) == width


def test_nothing_is_expanded_where_there_are_no_leaves():
    assert best_width([], [], [0.5], costs_of([0.1] * 12), Costs((1,), (0.1,)), 1.0) == 0


def slots_of(rows) -> tuple[tuple[float, ...], ...]:
    """Rates of places, the same for every class of places behind the first few."""
    return tuple((*row, *[row[-1] / 2] * (CLASSES - len(row))) for row in rows)


@some
@given(
    st.lists(chances, min_size=DEPTHS, max_size=DEPTHS),
    steps,
    st.floats(0, 0.5),
    rates,
    st.integers(1, 8),
    st.integers(2, 10),
)
def test_the_best_limits_of_chains_are_those_of_exhaustive_search(first, steps, drafting, rate, depth, budget):
    """Where nodes grow dearer with their number, as the search stops at the first level that does not pay."""
    target = Costs(tuple(range(1, 14)), tuple(itertools.accumulate(sorted(steps), initial=1.0)))
    levels, floor = best_limits(
        slots_of([(rate,) for rate in first]), 1, depth, budget, target, Costs((1,), (drafting,)), rate
    )
    path = list(itertools.accumulate((first[min(level, DEPTHS - 1)] for level in range(depth)), lambda a, b: a * b))
    worth = [
        sum(path[:count]) - rate * target.at(1 + count) - rate * drafting * (count - 1)
        for count in range(1, min(depth, budget - 1) + 1)
    ]
    kept = sum(chance >= floor for chance in path[:levels])
    assert kept >= 1
    assert worth[kept - 1] == pytest.approx(max(worth), abs=1e-9)


@some
@given(st.lists(chances, min_size=3, max_size=3), steps, rates, st.integers(1, 7), st.integers(2, 12))
def test_the_best_limits_of_one_level_are_those_of_exhaustive_search(row, steps, rate, children, budget):
    slots = slots_of([sorted(row, reverse=True)] * DEPTHS)
    rates = [slots[0][place] for place in (0, 1, 2, 3, 3, 3, 4)][:children]
    target = Costs(tuple(range(1, 14)), tuple(costs_of(steps)[1:]))
    levels, floor = best_limits(slots, children, 1, budget, target, Costs((1,), (0.1,)), rate)
    worth = [value(rates[:count], costs_of(steps), rate) for count in range(min(children, budget - 1) + 1)]
    best = max(worth.index(max(worth)), 1)  # a child at least, since the drafter has been asked
    assert (levels, floor) == (1, pytest.approx(rates[best - 1]))


@pytest.mark.parametrize(
    ("later", "node", "levels", "floor"),
    [
        (0.0, 0.0, 6, 0.6**3 * 0.2),  # the fifteenth of all products
        (0.0, 0.2, 3, 0.6**3),
        (0.3, 0.0, 3, 0.2**3),  # a fourth level has room for one more node only
        (5.0, 0.0, 1, 0.2),
        (5.0, 5.0, 1, 0.6),
    ],
)
def test_limits_follow_the_costs(later, node, levels, floor):
    """A drafter of which 60 % of the first children and 20 % of the second are accepted."""
    target, slots = Costs((1, 16), (1.0, 1.0 + 15 * node)), slots_of([(0.6, 0.2)] * DEPTHS)
    found = best_limits(slots, 2, 6, 16, target, Costs((1,), (later,)), 1.0)
    assert found == pytest.approx((levels, floor))
