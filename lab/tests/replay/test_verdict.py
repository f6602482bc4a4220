"""Verdicts on claims whose means are given."""

import pytest
import torch

from drafttree_lab.replay.paper import Comparison, Order, Trend
from drafttree_lab.replay.verdict import count_outcomes, judge, without

ABOUT = {"id": "x", "text": "it is so", "line": 1, "metric": "tau"}


def spread(low, high):
    """Means of which the first is in the middle and the resampled ones reach from one end to the other."""
    return torch.cat((torch.tensor([(low + high) / 2]), torch.linspace(low, high, 1001)))


def compare(low, high, sign=">", enough=True):
    """The verdict on a method whose ratio to another has this range."""
    means = {"a": spread(low, high), "b": torch.ones(1002)}
    claim = Comparison(**ABOUT, left="a", right="b", sign=sign)
    return judge(claim, means.__getitem__, [], 10, enough=enough)


@pytest.mark.parametrize(
    ("low", "high", "sign", "outcome"),
    [
        (1.1, 1.3, ">", "reproduced"),
        (0.7, 0.9, ">", "contradicted"),
        (0.7, 0.9, "<", "reproduced"),
        (1.1, 1.3, "<", "contradicted"),
        (0.9, 1.3, ">", "undecided"),
    ],
)
def test_an_interval_on_one_side_decides_a_comparison(low, high, sign, outcome):
    found = compare(low, high, sign)
    assert found.outcome == outcome
    assert found.estimate == pytest.approx((low + high) / 2)
    assert found.prompts == 10


def test_an_undecided_claim_tells_how_many_prompts_would_decide():
    # 0.1 from 1, and 0.19 to either side within 95 %: 10 * (0.19 / 0.1)^2 prompts
    assert compare(0.9, 1.3).needed == 37
    assert compare(0.9, 1.1).needed is None


def test_too_few_prompts_decide_nothing():
    assert compare(1.1, 1.3, enough=False).outcome == "undecided"


def test_an_order_is_judged_by_kendalls_tau():
    means = {"a": spread(4.0, 4.2), "b": spread(2.0, 2.2), "c": spread(3.0, 3.2)}
    claim = Order(**ABOUT, kind="order", methods=["a", "b", "c"])
    found = judge(claim, means.__getitem__, [], 5, enough=True)
    assert found.estimate == pytest.approx(1 / 3)  # two of three pairs are in order
    assert found.outcome == "contradicted"  # an order is the claimed one from a tau of 0.5 on
    same = judge(claim.model_copy(update={"methods": ["a", "c", "b"]}), means.__getitem__, [], 5, enough=True)
    assert (same.estimate, same.outcome) == (1.0, "reproduced")
    backwards = judge(claim.model_copy(update={"methods": ["b", "c", "a"]}), means.__getitem__, [], 5, enough=True)
    assert (backwards.estimate, backwards.outcome) == (-1.0, "contradicted")


def test_a_trend_compares_the_last_value_of_the_axis_with_the_first():
    means = {"a@1": spread(1.0, 1.1), "a@2": spread(0.1, 0.2), "a@3": spread(2.0, 2.2), "b@1": spread(2.0, 2.2)}
    means["b@3"] = spread(2.0, 2.2)
    claim = Trend(**ABOUT, kind="trend", method="a", sign=">")
    found = judge(claim, means.__getitem__, [1, 2, 3], 5, enough=True)
    assert (found.outcome, found.estimate) == ("reproduced", pytest.approx(2.0))
    over = judge(claim.model_copy(update={"over": "b"}), means.__getitem__, [1, 2, 3], 5, enough=True)
    assert over.estimate == pytest.approx(2.0)


def test_outcomes_are_counted():
    claim = Comparison(**ABOUT, left="a", right="b", sign=">")
    verdicts = [compare(1.1, 1.3), compare(1.2, 1.3), without(claim, "not run", "no drafter")]
    assert count_outcomes(verdicts) == {"reproduced": 2, "not run": 1}
