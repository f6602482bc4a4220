"""Intervals of ratios, against scipy and ratios worked out by hand; `test_coverage.py` has what they cover."""

import numpy as np
import pytest
import torch
from scipy import stats

from drafttree_lab.replay.intervals import Jackknife, holm


def texts(*values):
    """Texts of one round each that committed so many tokens."""
    return [(float(value), 1.0) for value in values]


def test_the_mean_is_over_sets_of_ratios_of_sums_or_of_texts():
    jackknife, a, b = Jackknife({"a": 2, "b": 1}), [(2.0, 1.0), (1.0, 2.0)], [(6.0, 2.0)]
    assert jackknife.mean([("a", a), ("b", b)])[0].item() == pytest.approx((3 / 3 + 3.0) / 2)
    assert jackknife.mean([("a", a), ("b", b)], "texts")[0].item() == pytest.approx(((2.0 + 0.5) / 2 + 3.0) / 2)


def test_each_prompt_is_left_out_of_all_methods_in_turn():
    jackknife = Jackknife({"a": 3, "b": 2})
    found = jackknife.mean([("a", texts(1, 2, 6)), ("b", texts(5, 7))])
    assert found.tolist() == pytest.approx([(3 + 6) / 2, (4 + 6) / 2, (3.5 + 6) / 2, (1.5 + 6) / 2, 5.0, 4.0])


def test_prompts_of_a_cluster_are_left_out_together():
    found = Jackknife({"a": ["book", "speech", "book"]}).mean([("a", texts(1, 2, 6))])
    assert found.tolist() == pytest.approx([9 / 3, 2.0, 7 / 2])


def test_a_ratio_that_all_prompts_agree_on_has_no_spread():
    jackknife = Jackknife({"a": 5})
    values = jackknife.mean([("a", texts(2, 4, 6, 8, 10))]) / jackknife.mean([("a", texts(1, 2, 3, 4, 5))])
    found = jackknife.estimate(values)
    assert (found.value, found.low, found.high, found.p) == (2.0, 2.0, 2.0, 0.0)
    equal = jackknife.estimate(torch.ones(6, dtype=torch.float64))
    assert equal.p == 1.0


def test_of_a_geometric_mean_it_is_students_interval_by_scipy():
    # the geometric mean of ratios is linear in the logarithms, where the jackknife's error is the standard error
    ratios = np.array([1.1, 0.9, 1.4, 1.2, 1.05, 0.95, 1.3, 1.0, 1.15, 1.25])
    logs = np.log(ratios)
    without = (logs.sum() - logs) / (len(logs) - 1)
    values = torch.from_numpy(np.exp(np.concatenate(([logs.mean()], without))))
    found = Jackknife({"a": 10}).estimate(values)
    test = stats.ttest_1samp(logs, 0.0)
    interval = test.confidence_interval(0.95)
    assert found.value == pytest.approx(np.exp(logs.mean()))
    assert (found.low, found.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))
    assert found.p == pytest.approx(test.pvalue)


def test_of_two_sets_it_has_satterthwaites_freedom_as_welchs_test_by_scipy():
    # the ratio of the geometric means of two independent sets: Welch's t-test of the logarithms
    one, two = np.log([1.5, 1.1, 1.9, 1.3, 1.2]), np.log([1.0, 1.02, 0.97, 1.01, 0.99, 1.05])
    values = [one.mean() - two.mean()]
    values += [(one.sum() - each) / 4 - two.mean() for each in one]
    values += [one.mean() - (two.sum() - each) / 5 for each in two]
    found = Jackknife({"one": 5, "two": 6}).estimate(torch.tensor(values, dtype=torch.float64).exp())
    test = stats.ttest_ind(one, two, equal_var=False)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((np.exp(interval.low), np.exp(interval.high)))
    assert found.p == pytest.approx(test.pvalue)


def test_of_a_ratio_of_sums_it_is_near_scipys_bca_interval():
    generator = np.random.default_rng(1)
    tokens = generator.uniform(40, 60, 40)
    rounds = np.stack([tokens / generator.uniform(2, 4, 40), tokens / generator.uniform(2, 3, 40)])
    jackknife = Jackknife({"a": 40})
    means = [jackknife.mean([("a", list(zip(tokens, own, strict=True)))]) for own in rounds]
    found = jackknife.estimate(means[0] / means[1])

    def ratio(left, right, axis=-1):
        return right.sum(axis) / left.sum(axis)

    bca = stats.bootstrap(tuple(rounds), ratio, paired=True, method="BCa", rng=generator).confidence_interval
    assert found.value == pytest.approx(rounds[1].sum() / rounds[0].sum())
    assert (found.low, found.high) == pytest.approx((bca.low, bca.high), abs=0.02)


@pytest.mark.parametrize("sizes", [{"a": 1}, {"a": 9, "b": 1}])
def test_a_set_of_one_prompt_has_no_interval(sizes):
    jackknife = Jackknife(sizes)
    found = jackknife.estimate(jackknife.mean([(name, texts(*range(2, 2 + size))) for name, size in sizes.items()]))
    assert (found.low, found.high, found.p) == (None, None, 1.0)


def test_what_is_not_positive_has_no_interval():
    jackknife = Jackknife({"a": 3})
    assert jackknife.estimate(jackknife.mean([("a", texts(0, 0, 4))])).low is None


def test_holms_correction_is_that_of_its_paper():
    # Holm 1979: the least is multiplied by all, the next by one fewer, and none falls below the one before it
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.3, 0.9]) == pytest.approx([0.6, 0.9])
    assert holm([0.01, 0.02], claims=16) == pytest.approx([0.16, 0.3])
    assert holm([]) == []
