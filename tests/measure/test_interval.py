import math

import pytest
from scipy import stats

from drafttree.measure.interval import Interval


def test_a_mean_has_students_interval():
    values = [1.0, 2.0, 4.0, 8.0]
    low, high = stats.t.interval(0.95, 3, 3.75, stats.sem(values))
    found = Interval.by_student(values)
    assert (found.mean, found.low, found.high) == pytest.approx((3.75, low, high))
    assert found.margin == pytest.approx((high - low) / 2)
    assert str(found) == f"3.75 [{low:.2f}, {high:.2f}]"


def test_a_ratio_is_the_geometric_mean_with_students_interval_of_the_logarithms():
    found = Interval.of_ratio_by_student([2.0, 3.0, 4.0], [1.0, 2.0, 2.0])
    logs = [math.log(ratio) for ratio in (2.0, 1.5, 2.0)]
    low, high = stats.t.interval(0.95, 2, sum(logs) / 3, stats.sem(logs))
    assert found.mean == pytest.approx(6 ** (1 / 3))
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_a_gain_of_pairs_that_keep_their_ratio_is_certain():
    found = Interval.of_gain_by_student([2.2, 4.4, 6.6], [2.0, 4.0, 6.0])
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    found = Interval.of_gain_by_student([3.0, 3.0], [2.0, 4.0])
    assert (found.mean, found.margin) == pytest.approx((0, stats.t.ppf(0.975, 1) / 3), abs=1e-9)


def test_a_single_sample_has_no_ends():
    for found in (
        Interval.by_student([1.5]),
        Interval.of_ratio_by_student([3.0], [2.0]),
        Interval.of_gain_by_student([5.0], [2.0]),
    ):
        assert (found.mean, found.low, found.high, found.margin) == (pytest.approx(1.5), None, None, math.inf)
        assert f"{found:.1f}" == "1.5"
