import math

import pytest
import torch

from drafttree.core.tree import TreeBuilder
from drafttree.engine.batching.expansion_gate import ExpansionGate, Rates
from drafttree.engine.tree_growth import Frontier
from drafttree.policies.calibration import SurvivalCalibration


def level(logprobs: list[list[float]]) -> tuple[TreeBuilder, Frontier]:
    """The trees of some requests after their first level, all of whose nodes are the frontier; -inf is padding."""
    paths = torch.tensor(logprobs)
    tree = TreeBuilder(torch.zeros(len(logprobs), 1, dtype=torch.long))
    tokens = torch.arange(paths.shape[1]).expand(paths.shape)
    parents = torch.zeros_like(tokens)
    tree.add(tokens, parents, paths, paths)
    return tree, Frontier(1 + tokens, tokens, parents, paths, paths)


def expanded(logprobs: list[list[float]], *, row: float, draft: float, rate: float = 1.0) -> list[list[bool]]:
    """Which nodes of a first level are expanded where a further row and a draft pass cost so much."""
    rates = Rates(lambda rows: 1 + row * rows, lambda width: draft, rows=len(logprobs), rate=rate)
    gate = ExpansionGate([SurvivalCalibration.empty()] * len(logprobs), rates)
    mask = gate.expand(*level(logprobs), 1)
    assert mask is not None
    return mask.tolist()


LIKELY, UNLIKELY, PADDING = math.log(0.95), math.log(0.01), -math.inf


def test_everything_is_expanded_where_it_costs_nothing():
    assert expanded([[LIKELY, -3.0], [-0.5, PADDING]], row=1e-9, draft=1e-9) == [[True, True], [True, False]]


@pytest.mark.parametrize(("row", "draft"), [(10.0, 1e-9), (1e-9, 10.0)])
def test_nothing_is_expanded_where_rows_or_draft_passes_cost_more_than_they_yield(row, draft):
    assert expanded([[LIKELY], [LIKELY]], row=row, draft=draft) == [[False], [False]]


def test_the_likeliest_nodes_of_all_requests_are_expanded():
    found = expanded([[UNLIKELY], [LIKELY], [UNLIKELY]], row=0.3, draft=0.01)
    assert found == [[False], [True], [False]]


def test_a_draft_pass_that_one_request_cannot_pay_is_paid_by_many():
    assert expanded([[LIKELY]], row=0.01, draft=1.0) == [[False]]
    assert expanded([[LIKELY]] * 8, row=0.01, draft=1.0) == [[True]] * 8


def test_padding_that_was_trimmed_since_does_not_shift_later_levels():
    rates = Rates(lambda rows: 1 + 1e-9 * rows, lambda width: 1e-9, rows=1, rate=1.0)
    gate = ExpansionGate([SurvivalCalibration.empty()], rates)
    tree, frontier = level([[LIKELY, PADDING, PADDING]])
    gate.expand(tree, frontier, 1)
    tree.trim(1)
    paths = torch.tensor([[2 * LIKELY]])
    tokens = torch.tensor([[7]])
    tree.add(tokens, torch.tensor([[1]]), paths, paths)
    mask = gate.expand(tree, Frontier(torch.tensor([[2]]), tokens, torch.zeros_like(tokens), paths, paths), 2)
    assert mask is not None
    assert mask.tolist() == [[True]]
