"""How much of waiting prompts is read in a pass."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.batching.loop import LONGEST_PART, SHORTEST_PART, STRETCH, choose_parts
from drafttree.engine.drafting.prices import Prices

NO_DRAFTS = (DraftCosts(0.0, Costs.of({1: 0.0})),)


def sizes(prices: Prices, writing: int, *unread: int, max_token_gap: float = 3.0) -> list[int]:
    """The sizes of the parts of prompts that have so many tokens to be read."""
    reading: list[Any] = [SimpleNamespace(unread=count) for count in unread]
    return [part.size for part in choose_parts(reading, writing, prices, max_token_gap)]


@pytest.fixture
def prices() -> Prices:
    return Prices(CostCurve(Costs.of({1: 1.0, 2: 1.01}), NO_DRAFTS, 0.0, 0.1))


@pytest.mark.parametrize("max_token_gap", [3.0, 4.5])
def test_a_round_takes_as_long_as_the_gap_allows_and_no_longer(prices, max_token_gap):
    (size,) = sizes(prices, 4, 1500, max_token_gap=max_token_gap)
    assert prices.round(4, 4 + size) <= max_token_gap < prices.round(4, 4 + size + 1)


def test_where_rounds_take_longer_than_the_gap_prompts_make_them_twice_as_long(prices):
    (size,) = sizes(prices, 4, 1500, max_token_gap=0.2)
    assert prices.round(4, 4 + size) <= STRETCH * prices.round(4, 4) < prices.round(4, 4 + size + 1)


@pytest.mark.parametrize(("writing", "max_token_gap"), [(0, 3.0), (4, math.inf)])
def test_where_nobody_waits_parts_are_as_long_as_they_may_be(prices, writing, max_token_gap):
    assert sizes(prices, writing, 1500, max_token_gap=max_token_gap) == [LONGEST_PART]


def test_the_oldest_prompt_is_read_first_and_the_next_one_has_what_is_left(prices):
    room = sum(sizes(prices, 4, 1500))
    assert sizes(prices, 4, 10, 1500, 1500) == [10, room - 10]


def test_a_prompt_goes_on_however_dear_its_rows_are():
    dear = Prices(CostCurve(Costs.of({1: 1.0, 2: 9.0}), NO_DRAFTS, 0.0, 0.0))
    assert sizes(dear, 4, 1500) == [SHORTEST_PART]
