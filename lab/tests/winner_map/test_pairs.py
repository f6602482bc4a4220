"""The papers' pairs: costs from printed numbers, agreement by interpolation."""

import pytest

from drafttree_lab.winner_map.published import Pair, method_costs, place, published_pairs


def pair(tau):
    """A pair with so many tokens per round."""
    return Pair("toy", "talon", "chain", tau, 0.1)


def test_costs_are_those_of_the_printed_numbers():
    found = {each.name: each for each in published_pairs()}
    assert len(found) == 9
    vicuna = found["Vicuna-13B"]
    assert vicuna.tau == pytest.approx((6.61 + 6.74 + 8.31 + 7.12 + 5.24 + 6.93) / 6)
    assert vicuna.draft_cost == method_costs("talon", "TALON").draft == pytest.approx((6.61 / 3.78 - 1) / 9, abs=1e-3)
    dynatree = (6.82 / 1.47 - 4.56 / 1.26) / 3
    assert found["Pythia-2.8B, WikiText-2"].draft_cost == pytest.approx(dynatree, abs=1e-3)
    assert found["Pythia-2.8B, PG-19"].tau == 4.56
    assert found["Llama3.1-8B"].draft_cost == pytest.approx((3.88 / (51.2 / 34.5) - 1) / 5, abs=2e-3)
    assert found["Llama3.1-8B"].sampled
    assert not vicuna.sampled


@pytest.mark.parametrize(
    ("tau", "agreement", "beyond"),
    [(3.0, 0.6, ""), (2.0, 0.4, ""), (4.5, 0.85, ""), (1.2, 0.4, "below"), (9.0, 0.9, "above")],
)
def test_a_pair_lies_where_a_drafter_commits_as_much(tau, agreement, beyond):
    placed = place(pair(tau), {0.9: 5.0, 0.4: 2.0, 0.8: 4.0})
    assert placed.agreement == pytest.approx(agreement)
    assert placed.beyond == beyond


def test_one_drafter_alone_holds_every_pair():
    assert place(pair(3.0), {0.5: 3.0}).agreement == 0.5
    assert place(pair(4.0), {0.5: 3.0}).beyond == "above"
