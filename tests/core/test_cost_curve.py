"""Costs between and beyond the measured sizes, of whole rounds, and the curve files that are refused."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttree.core.cost_curve import LARGEST_STEP, CostCurve, Costs, DraftCosts, parse_cost_curve
from drafttree.errors import ConfigError

COSTS = Costs((1, 4, 16), (1.0, 1.6, 4.0))
CURVE = CostCurve(
    target=COSTS,
    draft=(DraftCosts(0.5, Costs((1, 8), (0.2, 0.9))), DraftCosts(0.0, Costs((1,), (0.0,)))),
    overhead=0.3,
    plain_overhead=0.1,
)
FILE = {
    "target": {"1": 1.0, "4": 1.6, "16": 4.0},
    "draft": [{"first": 0.5, "later": {"1": 0.2, "8": 0.9}}, {"first": 0.0, "later": {"1": 0.0}}],
    "overhead": 0.3,
    "plain_overhead": 0.1,
}

measured = st.dictionaries(st.integers(2, 200), st.floats(1e-6, 10), max_size=6).flatmap(
    lambda others: st.floats(1e-6, 10).map(lambda one: {1: one, **others})
)


@pytest.mark.parametrize(
    ("size", "cost"),
    [(1, 1.0), (2, 1.2), (3, 1.4), (4, 1.6), (5, 1.8), (10, 2.8), (16, 4.0), (17, 4.2), (36, 8.0)],
)
def test_costs_are_linear_between_the_sizes_and_beyond_the_last_two(size, cost):
    assert COSTS.at(size) == pytest.approx(cost)


def test_a_single_size_stands_for_all():
    assert [Costs((1,), (0.7,)).at(size) for size in (1, 2, 99)] == [0.7] * 3


def test_costs_up_to_a_size_are_those_of_each():
    assert COSTS.up_to(20)[1:] == [COSTS.at(size) for size in range(1, 21)]
    assert [len(COSTS.up_to(most)) for most in (20, 4, 30)] == [21, 5, 31]


def test_a_larger_pass_measured_cheaper_costs_what_the_smaller_one_does():
    assert Costs.of({4: 1.5, 1: 1.0, 16: 3.0, 8: 1.2, 2: 0.9}) == Costs((1, 2, 4, 8, 16), (1.0, 1.0, 1.5, 1.5, 3.0))


@given(measured)
def test_costs_never_fall_and_no_measured_one_is_lowered(passes):
    costs = Costs.of(passes)
    rising = costs.up_to(300)[1:]
    assert all(after >= before * (1 - 1e-12) for before, after in itertools.pairwise(rising))
    assert all(costs.at(size) >= cost for size, cost in passes.items())


@pytest.mark.parametrize(
    ("nodes", "widths", "source", "cost"),
    [
        (1, (), 0, 1.0 + 0.1),
        (1, (1,), 0, 1.0 + 0.3 + 0.5),
        (4, (1, 1, 1), 0, 1.6 + 0.3 + 0.5 + 0.2 + 0.2),
        (16, (1, 8, 4), 0, 4.0 + 0.3 + 0.5 + 0.9 + 0.5),
        (16, (1, 8, 4), 1, 4.0 + 0.3),
        (16, (1, 8, 4), 7, 4.0 + 0.3),  # a model that was not measured apart counts as the last one
    ],
)
def test_the_cost_of_a_round_by_hand(nodes, widths, source, cost):
    assert CURVE.round(nodes, widths, source) == pytest.approx(cost)


def test_a_round_without_drafts_of_one_node_is_the_plain_one():
    assert CURVE.plain_round == CURVE.round(1, ()) == pytest.approx(1.1)


def test_a_curve_comes_back_from_its_file():
    assert CURVE.to_json() == FILE
    assert parse_cost_curve(json.loads(json.dumps(CURVE.to_json()))) == CURVE
    assert hash(parse_cost_curve(FILE)) == hash(CURVE)


def test_one_model_needs_no_list_and_sizes_no_order():
    curve = parse_cost_curve(FILE | {"draft": {"first": 1, "later": {"8": 0.9, "1": 0.2}}, "target": {"2": 3, "1": 2}})
    assert curve.draft == (DraftCosts(1.0, Costs((1, 8), (0.2, 0.9))),)
    assert curve.target == Costs((1, 2), (2.0, 3.0))


def test_steps_of_eight_are_no_gap():
    sizes = [LARGEST_STEP**power for power in range(4)]
    assert parse_cost_curve(FILE | {"target": {str(size): 1.0 for size in sizes}}).target.sizes == tuple(sizes)


def without(name: str) -> dict:
    return {key: value for key, value in FILE.items() if key != name}


NAMES = "target, draft, overhead, plain_overhead"
LONG = "1" * 5000
"""More digits than Python makes a number of."""
REFUSED = [
    (None, f"a cost curve is not a JSON object with {NAMES}"),
    ([FILE], f"a cost curve is not a JSON object with {NAMES}"),
    ("curve", f"a cost curve is not a JSON object with {NAMES}"),
    ({}, f"a cost curve lacks {NAMES}; it needs {NAMES}"),
    *((without(name), f"a cost curve lacks {name}; it needs {NAMES}") for name in FILE),
    (FILE | {"v": 1, "c": 2}, f"a cost curve has v, c, which is unknown; known: {NAMES}"),
    (FILE | {"draft": []}, "a cost curve's 'draft' is empty; give the costs of one model at least"),
    (FILE | {"draft": 0.1}, "'draft' is not a JSON object with first, later"),
    (FILE | {"draft": [None]}, "'draft' is not a JSON object with first, later"),
    (FILE | {"draft": {"first": 1}}, "'draft' lacks later; it needs first, later"),
    (
        FILE | {"draft": {"first": 1, "later": {"1": 1}, "last": 1}},
        "'draft' has last, which is unknown; known: first, later",
    ),
    (FILE | {"draft": {"first": -0.1, "later": {"1": 1}}}, "'first' is -0.1; give a cost of 0 or more"),
    (FILE | {"draft": {"first": 0, "later": {"1": -1}}}, "'later' at 1 is -1; give a cost of 0 or more"),
    (FILE | {"draft": {"first": 0, "later": {"2": 1}}}, "'later' begins at 2; measure 1 too"),
    (FILE | {"overhead": -1}, "'overhead' is -1; give a cost of 0 or more"),
    (FILE | {"overhead": None}, "'overhead' is None; give a cost of 0 or more"),
    (FILE | {"plain_overhead": True}, "'plain_overhead' is True; give a cost of 0 or more"),
    (FILE | {"plain_overhead": math.inf}, "'plain_overhead' is inf; give a cost of 0 or more"),
    (FILE | {"overhead": 1e101}, "'overhead' is 1e+101; give a cost of at most 1e+100"),
    (FILE | {"target": {}}, """'target' is not an object of costs by size, such as {"1": 1.0, "4": 1.2}"""),
    (FILE | {"target": [1.0, 1.2]}, """'target' is not an object of costs by size, such as {"1": 1.0, "4": 1.2}"""),
    (FILE | {"target": {"1": 0}}, "'target' at 1 is 0; give a cost above 0"),
    (FILE | {"target": {"1": 1, "4": -2}}, "'target' at 4 is -2; give a cost above 0"),
    (FILE | {"target": {"1": math.nan}}, "'target' at 1 is nan; give a cost above 0"),
    (FILE | {"target": {"1": "fast"}}, "'target' at 1 is 'fast'; give a cost above 0"),
    (FILE | {"target": {"1": True}}, "'target' at 1 is True; give a cost above 0"),
    (FILE | {"target": {"1": None}}, "'target' at 1 is None; give a cost above 0"),
    (FILE | {"target": {"0": 1, "1": 1}}, "'target' has a size of '0'; sizes are whole numbers from 1 up"),
    (FILE | {"target": {"1": 1, "-2": 1}}, "'target' has a size of '-2'; sizes are whole numbers from 1 up"),
    (FILE | {"target": {"1": 1, "1.5": 1}}, "'target' has a size of '1.5'; sizes are whole numbers from 1 up"),
    (FILE | {"target": {"1": 1, "all": 1}}, "'target' has a size of 'all'; sizes are whole numbers from 1 up"),
    (FILE | {"target": {"1": 1, "01": 2}}, "'target' has a size of '01'; sizes are whole numbers from 1 up"),
    (FILE | {"target": {"1": 1, "\u0662": 2}}, "'target' has a size of '\u0662'; sizes are whole numbers from 1 up"),
    (FILE | {"target": {"1": 1, LONG: 2}}, f"'target' has a size of '{LONG}'; sizes are whole numbers from 1 up"),
    (FILE | {"overhead": 10**400}, f"'overhead' is {10**400}; give a cost of 0 or more"),
    (FILE | {"target": {"4": 1.2, "8": 1.3}}, "'target' begins at 4; measure 1 too"),
    (FILE | {"target": {"1": 1, "9": 2}}, "'target' has a gap between 1 and 9; measure 8 too"),
    (FILE | {"target": {"1": 1, "4": 2, "64": 3}}, "'target' has a gap between 4 and 64; measure 32 too"),
    (FILE | {"draft": {"first": 0, "later": {"1": 1, "16": 2}}}, "'later' has a gap between 1 and 16; measure 8 too"),
]


@pytest.mark.parametrize(("value", "message"), REFUSED, ids=[message[-60:] for _, message in REFUSED])
def test_what_is_no_curve_is_refused_by_name(value, message):
    with pytest.raises(ConfigError) as error:
        parse_cost_curve(value)
    assert str(error.value).removeprefix("a cost curve's ") == message.removeprefix("a cost curve's ")
    assert "\n" not in str(error.value)
