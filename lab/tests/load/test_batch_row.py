"""The figures of a batch size, from runs made by hand."""

import math

import pytest

from drafttree.measure.interval import Interval
from drafttree_lab.load.batch_row import BatchRow, make_rows
from drafttree_lab.load.batch_run import BatchRun, SteadyRounds
from lab_helpers.batch_runs import TEXT, run


def turns(**speeds):
    """Turns of ways with a speed for each turn."""
    names = {"one_by_one": "one by one"} | {f"fixed_{nodes}": f"fixed {nodes}" for nodes in (1, 2)}
    return [
        {names.get(way, way): run(speed) for way, speed in zip(speeds, own, strict=True)}
        for own in zip(*speeds.values(), strict=True)
    ]


def test_ratios_are_of_the_same_turn():
    row = BatchRow.of(2, turns(speculative=[20, 60, 100], plain=[10, 30, 50], transformers=[5, 15, 25]))
    assert row.over_plain == Interval(*[pytest.approx(2.0)] * 3)
    assert row.over_transformers == Interval(*[pytest.approx(4.0)] * 3)
    assert row.plain_over_transformers == Interval(*[pytest.approx(2.0)] * 3)
    assert row.speeds["plain"] == pytest.approx((10 * 30 * 50) ** (1 / 3))
    assert row.end_to_end["plain"] == pytest.approx(2 * len(TEXT))


def test_the_best_fixed_budget_is_the_fastest_of_them():
    row = BatchRow.of(2, turns(speculative=[21, 22], plain=[90, 90], fixed_1=[10, 10], fixed_2=[20, 20]))
    assert row.best_fixed == "fixed 2"
    assert row.over_best_fixed.mean == pytest.approx(math.sqrt(1.05 * 1.1))


def test_without_fixed_budgets_there_is_no_best():
    row = BatchRow.of(2, turns(speculative=[20], plain=[10]))
    assert (row.best_fixed, row.over_best_fixed, row.plain_over_one_by_one) == (None, None, None)


def test_what_was_drafted_is_per_request_and_round():
    spec = run(20, size=2, drafted=60, drafting=8)
    row = BatchRow.of(2, [{"speculative": spec, "plain": run(10)}])
    assert (row.tau, row.expected_tau, row.drafted, row.drafting) == (5.0, 5.0, 3.0, 0.8)


def test_the_predicted_gain_is_the_mean_over_all_rounds_that_have_one():
    runs = [run(20, predictions=3, predicted_gains=6.0), run(20, predictions=1, predicted_gains=4.0), run(20)]
    found = BatchRow.of(2, [{"speculative": each, "plain": run(10)} for each in runs])
    assert found.predicted_gain == 2.5


def test_the_law_has_the_steady_ratio_in_passes_of_plain_decoding_at_the_same_batch():
    ours = run(20, committed=100, draft_passes=20, draft_seconds=1.0, target_seconds=3.0)  # 5 s for 10 rounds of 2
    plain = run(10, committed=20, seconds=2.0, target_seconds=1.6)  # 2 s for 10 rounds of 2
    row = BatchRow.of(2, [{"speculative": ours, "plain": plain}])
    law = row.law
    assert (law.tau, law.delta) == (5.0, 2.0)
    assert (law.v, law.c, law.h, law.h0) == tuple(map(pytest.approx, (0.3 / 0.16, 0.05 / 0.16, 0.1 / 0.16, 0.25)))
    assert row.speedup == pytest.approx(law.decoding) == pytest.approx(2.0)


def test_a_way_without_a_steady_state_has_no_speed_and_no_ratio():
    never = BatchRun([TEXT], 2.0, SteadyRounds())
    row = BatchRow.of(2, [{"speculative": never, "plain": run(10)}])
    assert (row.over_plain, row.law, row.speedup) == (None, None, None)
    assert set(row.speeds) == {"plain"}
    assert row.end_to_end["speculative"] == 2.0


def test_one_by_one_is_run_at_one_size_and_compared_with_all():
    small = turns(speculative=[9, 9], plain=[10, 10])
    large = turns(speculative=[9, 9], plain=[40, 40], one_by_one=[8, 8])
    rows = make_rows({1: small, 16: large})
    assert rows[0].plain_over_one_by_one == Interval(pytest.approx(1.25))
    assert rows[1].plain_over_one_by_one == Interval(*[pytest.approx(5.0)] * 3)
