"""The paired bootstrap, against ratios worked out by hand and the delta method."""

import math

import pytest
import torch

from drafttree_lab.replay.bootstrap import RESAMPLES, Bootstrap, interval


def test_the_mean_is_over_sets_of_ratios_of_sums():
    found = Bootstrap({"a": 2, "b": 1}).mean([("a", [(2.0, 1.0), (1.0, 2.0)]), ("b", [(6.0, 2.0)])])
    assert found.shape == (1 + RESAMPLES,)
    assert found[0].item() == pytest.approx((1.0 + 3.0) / 2)


def test_methods_are_judged_on_the_same_resampled_prompts():
    bootstrap = Bootstrap({"a": 5})
    samples = [(float(number), 1.0) for number in range(1, 6)]
    doubled = [(2 * above, below) for above, below in samples]
    ratio = bootstrap.mean([("a", doubled)]) / bootstrap.mean([("a", samples)])
    assert interval(ratio) == pytest.approx((2.0, 2.0))


def test_the_interval_of_a_mean_is_as_wide_as_the_normal_law_has_it():
    values = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 5
    low, high = interval(Bootstrap({"a": 400}).mean([("a", [(value, 1.0) for value in values.tolist()])]))
    assert (high - low) / 2 == pytest.approx(1.96 * values.std().item() / math.sqrt(400), rel=0.1)


def test_the_same_cells_give_the_same_interval():
    samples = [("a", [(1.0, 2.0), (3.0, 4.0), (5.0, 1.0)])]
    assert torch.equal(Bootstrap({"a": 3}).mean(samples), Bootstrap({"a": 3}).mean(samples))
