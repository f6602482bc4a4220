import math

import pytest

from drafttree.engine.batching.expansion_gate import ExpansionGate, NodeCosts
from drafttree.engine.growing_tree import GrowingTree
from drafttree.policies.calibration import SurvivalCalibration


def level(logprobs: list[float]) -> GrowingTree:
    """The tree of a request after its first level, all of whose nodes may be expanded."""
    tree, count = GrowingTree(0, 9), len(logprobs)
    tree.add([*range(count)], [0] * count, logprobs, logprobs)
    tree.frontier = [*range(1, 1 + count)]
    return tree


def expanded(logprobs: list[list[float]], *, row: float, draft: float, rate: float = 1.0) -> list[list[int]]:
    """Which nodes of a first level are expanded where a further row and a draft pass cost so much."""
    rates = NodeCosts(lambda rows: 1 + row * rows, lambda width: draft, rows=len(logprobs), rate=rate)
    gate = ExpansionGate([SurvivalCalibration.empty()] * len(logprobs), rates)
    return gate.expand([level(own) for own in logprobs], 1)


LIKELY, UNLIKELY = math.log(0.95), math.log(0.01)


def test_everything_is_expanded_where_it_costs_nothing():
    assert expanded([[LIKELY, -3.0], [-0.5]], row=1e-9, draft=1e-9) == [[1, 2], [1]]


@pytest.mark.parametrize(("row", "draft"), [(10.0, 1e-9), (1e-9, 10.0)])
def test_nothing_is_expanded_where_rows_or_draft_passes_cost_more_than_they_yield(row, draft):
    assert expanded([[LIKELY], [LIKELY]], row=row, draft=draft) == [[], []]


def test_the_likeliest_nodes_of_all_requests_are_expanded():
    found = expanded([[UNLIKELY], [LIKELY], [UNLIKELY]], row=0.3, draft=0.01)
    assert found == [[], [1], []]


def test_a_draft_pass_that_one_request_cannot_pay_is_paid_by_many():
    assert expanded([[LIKELY]], row=0.01, draft=1.0) == [[]]
    assert expanded([[LIKELY]] * 8, row=0.01, draft=1.0) == [[1]] * 8


@pytest.mark.parametrize(("row", "chosen"), [(1e-9, [3, 4]), (0.3, [3])])
def test_nodes_of_later_levels_are_weighed_by_their_whole_path(row, chosen):
    """Under the likelier node stands the less likely child, so its path is still the better one."""
    rates = NodeCosts(lambda rows: 1 + row * rows, lambda width: 1e-9, rows=1, rate=1.0)
    gate, tree = ExpansionGate([SurvivalCalibration.empty()], rates), level([LIKELY, UNLIKELY])
    gate.expand([tree], 1)
    tree.frontier = [1, 2]
    logprobs = [LIKELY + math.log(0.9), UNLIKELY + LIKELY]
    tree.add([7, 8], [0, 1], logprobs, logprobs)
    tree.frontier = [3, 4]
    assert gate.expand([tree], 2) == [chosen]
