from collections.abc import Sequence

import pytest

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.costs.round_costs import RoundCosts, RoundTimes

CURVE = CostCurve(
    target=Costs.of({1: 1.0, 4: 1.3, 16: 2.5}),
    draft=(DraftCosts(0.2, Costs.of({1: 0.1, 8: 0.24})),),
    overhead=0.05,
    plain_overhead=0.03,
)


def turn(
    rows: int,
    target: float,
    draft: float = 0.0,
    outside: float = 0.0,
    batch: int = 1,
    drafted: Sequence[tuple[int, Sequence[int]]] = (),
) -> RoundTimes:
    """A round with passes of these costs."""
    return RoundTimes(batch, rows, target, draft, outside, drafted)


def test_costs_are_those_of_the_curve_before_any_round():
    costs = RoundCosts(CURVE)
    assert costs.target(1, 4) == 1.3
    assert costs.round(1, 4, 0.5) == pytest.approx(1.3 + 0.5 + 0.05)
    assert costs.drafting(0, [1, 8]) == pytest.approx(0.2 + 0.24)
    assert costs.drafting(0, []) == 0


def test_the_first_level_of_several_requests_costs_what_more_nodes_add():
    assert RoundCosts(CURVE).drafting(0, [8]) == pytest.approx(0.2 + 0.14)


def test_passes_of_one_size_are_taken_to_be_as_much_dearer_as_all():
    costs = RoundCosts(CURVE)
    for _ in range(100):
        costs.observe(turn(4, 2.6, outside=0.5, batch=3))
    assert costs.target(3, 4) == pytest.approx(2.6)
    assert costs.target(3, 16) == pytest.approx(5.0)
    assert costs.round(3, 4) == pytest.approx(3.1)


def test_passes_of_several_sizes_tell_what_a_further_row_costs():
    costs = RoundCosts(CURVE)
    for _ in range(500):
        costs.observe(turn(4, 1.3 + 0.9, batch=3))
        costs.observe(turn(16, 2.5 + 0.9, batch=3))
    assert costs.target(3, 4) == pytest.approx(2.2, rel=0.02)
    assert costs.target(3, 10) == pytest.approx(1.9 + 0.9, rel=0.02)
    assert costs.target(3, 16) == pytest.approx(3.4, rel=0.02)


def test_batches_that_were_not_seen_follow_the_nearest():
    costs = RoundCosts(CURVE)
    costs.observe(turn(4, 2.6, batch=3))
    costs.observe(turn(16, 7.5, batch=16))
    assert costs.target(4, 4) == pytest.approx(2.6)
    assert costs.target(64, 4) == pytest.approx(3.9)


def test_noise_makes_no_row_free_and_none_endless():
    costs = RoundCosts(CURVE)
    for _ in range(100):
        costs.observe(turn(4, 2.0, batch=1))
        costs.observe(turn(16, 1.0, batch=1))
    assert costs.target(1, 17) > costs.target(1, 16)


def test_drafting_follows_the_rounds_too():
    costs = RoundCosts(CURVE)
    for _ in range(100):
        costs.observe(turn(4, 1.3, draft=0.88, drafted=[(0, [1, 8])]))
    assert costs.drafting(0, [1, 8]) == pytest.approx(0.88)


def test_frozen_costs_stay_as_they_are():
    costs = RoundCosts(CURVE, frozen=True)
    costs.observe(turn(4, 99.0, draft=9.0, outside=7.0, drafted=[(0, [1])]))
    assert costs.target(1, 4) == 1.3
    assert costs.round(1, 4) == pytest.approx(1.33)


def test_rows_within_are_the_most_that_stretch_a_pass_so_far():
    costs = RoundCosts(CURVE)
    found = costs.rows_within(4, 512, 1.7)
    limit = 1.7 * costs.target(4, 4)
    assert costs.target(4, 4 + found) <= limit < costs.target(4, 4 + found + 1)
    assert costs.rows_within(4, 3, 100.0) == 3


def test_without_a_drafter_a_row_adds_a_sixteenth_of_a_pass():
    costs = RoundCosts(None)
    assert costs.target(1, 17) == pytest.approx(2.0)
    costs.observe(turn(1, 0.1))
    assert costs.target(1, 17) == pytest.approx(0.2)


def test_the_cost_of_a_further_row_is_known_from_passes_of_several_sizes_and_forgotten_again():
    costs = RoundCosts(CURVE)
    assert not costs.knows_rows(3)
    for _ in range(3):
        costs.observe(turn(4, 1.3, batch=3))
    assert not costs.knows_rows(3)
    costs.observe(turn(16, 2.5, batch=3))
    assert costs.knows_rows(3)
    assert not costs.knows_rows(64)
    for _ in range(200):
        costs.observe(turn(4, 1.3, batch=3))
    assert not costs.knows_rows(3)


def test_frozen_costs_are_not_tried():
    assert RoundCosts(CURVE, frozen=True).knows_rows(3)


def test_passes_that_something_else_has_slowed_down_change_little():
    costs = RoundCosts(CURVE)
    for number in range(200):
        slow = 20.0 if number % 20 == 10 else 1.0
        costs.observe(turn(4, slow * 1.3, draft=slow * 0.44, batch=3, drafted=[(0, [1, 8])]))
    assert costs.target(3, 4) == pytest.approx(1.3, rel=0.06)
    assert costs.drafting(0, [1, 8]) == pytest.approx(0.44, rel=0.06)


def test_passes_that_stay_slow_are_believed():
    costs = RoundCosts(CURVE)
    for factor, rounds in ((1.0, 100), (3.0, 300)):
        for _ in range(rounds):
            costs.observe(turn(4, factor * 1.3, batch=3))
    assert costs.target(3, 4) == pytest.approx(3.9, rel=0.02)


def test_a_round_counts_as_half_as_much_again_as_expected_at_most():
    costs = RoundCosts(CURVE)
    assert costs.without_outlier(9.0, 2.0) == 3.0
    assert costs.without_outlier(1.0, 2.0) == 1.0
    assert RoundCosts(CURVE, frozen=True).without_outlier(9.0, 2.0) == 2.0


def test_a_steep_line_makes_no_pass_free():
    costs = RoundCosts(CURVE)
    for _ in range(200):
        costs.observe(turn(16, 1.0, batch=3))
        costs.observe(turn(15, 0.1, batch=3))
    assert costs.target(3, 1) > 0
