"""The papers' pairs: costs from printed numbers, agreement by interpolation."""

import pytest

from drafttree_lab.winner_map.pairs import (
    PublishedPair,
    draft_cost,
    dynatree_cost,
    implied_target_costs,
    place,
    published_pairs,
    talon_cost,
)


def pair(tau):
    """A pair with so many tokens per round."""
    return PublishedPair("toy", "talon", "chain", tau, 0.1)


def test_costs_are_those_of_the_printed_numbers():
    found = {each.name: each for each in published_pairs()}
    assert len(found) == len(published_pairs()) == 9
    vicuna = found["Vicuna-13B"]
    assert vicuna.tau == pytest.approx((6.61 + 6.74 + 8.31 + 7.12 + 5.24 + 6.93) / 6)
    assert vicuna.draft_cost == pytest.approx((6.61 / 3.78 - 1) / 9, abs=1e-3)
    assert talon_cost() == pytest.approx(vicuna.draft_cost, abs=1e-3)
    assert found["Pythia-2.8B, WikiText-2"].draft_cost == pytest.approx((6.82 / 1.47 - 1) / 8)
    assert found["Pythia-2.8B, PG-19"].draft_cost == pytest.approx((4.56 / 1.26 - 1) / 5)
    assert dynatree_cost() == pytest.approx(((6.82 / 1.47 - 1) / 8 + (4.56 / 1.26 - 1) / 5) / 2)
    assert found["Llama3.1-8B"].draft_cost == pytest.approx((3.88 / (51.2 / 34.5) - 1) / 5)
    assert found["Llama3.1-8B"].sampled
    assert not vicuna.sampled


def test_trees_of_traversal_verification_cost_what_their_rates_say():
    found = implied_target_costs()
    assert found["Llama3.1-8B"] == pytest.approx({26: 1.089, 63: 1.344}, abs=1e-3)
    assert found["Llama2-7B"] == pytest.approx({26: 1.080, 63: 1.252}, abs=1e-3)


def test_the_cost_undoes_the_law():
    speedup = 4.2 / (1 + 0.07 * 6)
    assert draft_cost(4.2, speedup, 6) == pytest.approx(0.07)


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
