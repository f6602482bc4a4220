import math

import pytest
from scipy.stats import sem, t

from drafttree.evaluation.estimate import Estimate, RatioEstimate, student_t


def test_estimates_by_hand():
    found = Estimate.of([1.0, 2.0, 3.0])
    assert (found.mean, found.margin) == (2.0, pytest.approx(4.303 / math.sqrt(3)))
    assert found.high == found.mean + found.margin
    assert Estimate.of([2.0]).margin == math.inf
    gain = Estimate.of_gain([2.2, 4.4, 6.6], [2.0, 4.0, 6.0])
    assert gain.mean == pytest.approx(0.1)
    assert gain.margin == pytest.approx(0, abs=1e-9)
    gain = Estimate.of_gain([3.0, 3.0], [2.0, 4.0])
    assert gain.mean == pytest.approx(0)
    assert gain.margin == pytest.approx(12.706 * math.sqrt(2) / math.sqrt(2) / 3)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 15, 199])
def test_the_quantile_is_students(freedom):
    assert student_t(freedom) == pytest.approx(t.ppf(0.975, freedom), rel=0.01)


def test_a_ratio_is_the_geometric_mean_with_students_interval_of_the_logarithms():
    found = RatioEstimate.of([2.0, 3.0, 4.0], [1.0, 2.0, 2.0])
    logs = [math.log(ratio) for ratio in (2.0, 1.5, 2.0)]
    low, high = t.interval(0.95, 2, sum(logs) / 3, sem(logs))
    assert found.mean == pytest.approx(6 ** (1 / 3))
    assert (found.low, found.high) == (pytest.approx(math.exp(low), rel=1e-3), pytest.approx(math.exp(high), rel=1e-3))


def test_a_ratio_of_a_single_turn_has_no_interval():
    assert RatioEstimate.of([3.0], [2.0]) == RatioEstimate(pytest.approx(1.5))
