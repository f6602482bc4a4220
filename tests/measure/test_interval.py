import math

import pytest
from scipy import stats

from drafttree.measure.interval import Interval, total_speed


def test_a_mean_has_students_interval():
    values = [1.0, 2.0, 4.0, 8.0]
    low, high = stats.t.interval(0.95, 3, 3.75, stats.sem(values))
    found = Interval.by_student(values)
    assert (found.mean, found.low, found.high) == pytest.approx((3.75, low, high))
    assert found.margin == pytest.approx((high - low) / 2)
    assert str(found) == f"3.75 [{low:.2f}, {high:.2f}]"


def test_a_ratio_of_speeds_is_of_all_tokens_over_all_seconds():
    ours, theirs = [(10, 1.0), (100, 20.0), (10, 2.0)], [(10, 2.0), (100, 50.0), (10, 10.0)]
    found = Interval.of_speeds_by_jackknife(ours, theirs)
    assert found.mean == pytest.approx(total_speed(ours) / total_speed(theirs))
    assert found.mean == pytest.approx(62 / 23)
    logs = [math.log(ratio) for ratio in (60 / 22, 12 / 3, 52 / 21)]  # without each in turn
    pseudo = [3 * math.log(62 / 23) - 2 * log for log in logs]  # Tukey's pseudovalues
    reach = stats.t.ppf(0.975, 2) * stats.sem(pseudo)
    assert (found.low, found.high) == pytest.approx((62 / 23 * math.exp(-reach), 62 / 23 * math.exp(reach)))


def test_a_gain_of_pairs_that_keep_their_ratio_is_certain():
    found = Interval.of_gain_by_student([2.2, 4.4, 6.6], [2.0, 4.0, 6.0])
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    found = Interval.of_gain_by_student([3.0, 3.0], [2.0, 4.0])
    assert (found.mean, found.margin) == pytest.approx((0, stats.t.ppf(0.975, 1) / 3), abs=1e-9)


def test_a_single_sample_has_no_ends():
    for found in (
        Interval.by_student([1.5]),
        Interval.of_speeds_by_jackknife([(3, 1.0)], [(2, 1.0)]),
        Interval.of_gain_by_student([5.0], [2.0]),
    ):
        assert (found.mean, found.low, found.high, found.margin) == (pytest.approx(1.5), None, None, math.inf)
        assert f"{found:.1f}" == "1.5"
