"""How much of waiting prompts is read in a pass."""

from types import SimpleNamespace
from typing import Any

import pytest

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.batching.prompt_parts import LONGEST_PART, SHORTEST_PART, STRETCH, choose_parts
from drafttree.engine.drafting.prices import Prices

NO_DRAFTS = (DraftCosts(0.0, Costs.of({1: 0.0})),)


def sizes(costs: Prices, writing: int, *unread: int) -> list[int]:
    """The sizes of the parts of prompts that have so many tokens to be read."""
    reading: list[Any] = [SimpleNamespace(unread=count) for count in unread]
    return [part.size for part in choose_parts(reading, writing, costs)]


@pytest.fixture
def costs() -> Prices:
    return Prices(CostCurve(Costs.of({1: 1.0, 2: 1.01}), NO_DRAFTS, 0.0, 0.0))


def test_a_part_beside_texts_stretches_their_pass_as_far_as_allowed_and_no_further(costs):
    (size,) = sizes(costs, 4, 1500)
    assert costs.target(4, 4 + size) <= STRETCH * costs.target(4, 4) < costs.target(4, 4 + size + 1)


def test_where_nobody_writes_parts_are_as_long_as_they_may_be(costs):
    assert sizes(costs, 0, 1500) == [LONGEST_PART]


def test_the_oldest_prompt_is_read_first_and_the_next_one_has_what_is_left(costs):
    room = sum(sizes(costs, 4, 1500))
    assert sizes(costs, 4, 10, 1500, 1500) == [10, room - 10]


def test_a_prompt_goes_on_however_dear_its_rows_are():
    dear = Prices(CostCurve(Costs.of({1: 1.0, 2: 9.0}), NO_DRAFTS, 0.0, 0.0))
    assert sizes(dear, 4, 1500) == [SHORTEST_PART]
