"""RRS and RRSw on one level, against sums written out, and where numbers run out."""

from dataclasses import replace

import pytest
import torch

from drafttree.core import Proposal
from drafttree.errors import ConfigError
from drafttree.exactness import law
from drafttree.verifiers import RRS, Block, GreedyMultiDraft, KSeq, RRSw, Traversal
from drafttree.verifiers.base import normalise, ratio, residual, without
from testing.toy_pairs import SMALL_TREES, constant, drawn_tree, judged

P, Q = [0.2, 0.5, 0.3], [0.6, 0.3, 0.1]
ROWS = [(P, Q), ([0.1, 0.1, 0.8], [0.5, 0.4, 0.1]), ([0.25, 0.5, 0.25], [0.0, 0.5, 0.5]), (P, P)]


def overlap(p: list[float], q: list[float]) -> float:
    return sum(map(min, p, q))


def left_of(p: list[float], q: list[float]) -> list[float]:
    mass = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
    return [part / sum(mass) for part in mass] if sum(mass) else p


def removed(q: list[float], token: int) -> list[float]:
    return [0.0 if other == token else part / (1 - q[token]) for other, part in enumerate(q)]


@pytest.mark.parametrize(("p", "q"), ROWS)
def test_two_independent_children_are_accepted_as_the_sum_says(p, q):
    first, second = overlap(p, q), overlap(left_of(p, q), q)
    tables = constant(p, q)
    found = law(tables.target, tables.draft, SMALL_TREES["siblings"], RRS)
    assert found.expected_accepted == pytest.approx(1 - (1 - first) * (1 - second))


@pytest.mark.parametrize(("p", "q"), ROWS)
def test_two_children_without_replacement_are_accepted_as_the_sum_says(p, q):
    tables = constant(p, q)
    accepted = overlap(p, q)
    for token, drawn in enumerate(q):
        rejected = max(drawn - p[token], 0.0)
        if rejected:
            accepted += rejected * overlap(left_of(p, q), removed(q, token))
    found = law(tables.target, tables.draft, SMALL_TREES["siblings"], RRSw)
    assert found.expected_accepted == pytest.approx(accepted)


def test_the_questions_of_rrsw_in_order():
    tree = drawn_tree([0, 1, 2], [0, 0, 0], Q)
    verdict, randomness = judged(RRSw, tree, P, False, False, False)
    assert randomness.asked == pytest.approx([0.2 / 0.6, 0.5 / 0.75, 1.0])
    assert verdict.path == [0]


def test_the_questions_of_rrs_in_order():
    tree = drawn_tree([0, 0, 1], [0, 0, 0], Q, Proposal.WITH_REPLACEMENT)
    verdict, randomness = judged(RRS, tree, P, False, False, True)
    assert randomness.asked == pytest.approx([0.2 / 0.6, 0.0, (1 / 3) / 0.3])
    assert verdict == ([0, 3], 1)


def test_the_bonus_after_a_rejection_comes_from_what_is_left_of_the_target():
    _, randomness = judged(RRSw, drawn_tree([0], [0], Q), P, False)
    assert randomness.drawn == [pytest.approx([0.0, 0.5, 0.5])]


def test_the_bonus_after_an_accepted_leaf_comes_from_the_target():
    verdict, randomness = judged(RRSw, drawn_tree([1], [0], Q), P, True)
    assert verdict.path == [0, 1]
    assert randomness.drawn == [pytest.approx(P)]


@pytest.mark.parametrize(
    ("verifier", "proposal"), [(RRSw, "without-replacement"), (RRS, "with-replacement"), (KSeq, "with-replacement")]
)
def test_equal_rows_that_are_rejected_all_the_same_still_have_a_bonus(verifier, proposal):
    tree = drawn_tree([1, 0], [0, 0], P, Proposal(proposal))
    verdict, randomness = judged(verifier, tree, P, False, False)
    assert randomness.asked[0] == pytest.approx(1)
    assert sum(randomness.drawn[0]) == pytest.approx(1)
    assert verdict.path == [0]


@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal, Block, KSeq, GreedyMultiDraft])
def test_a_token_the_draft_does_not_have_is_never_accepted(verifier):
    tree = drawn_tree([1], [0], [1.0, 0.0, 0.0], verifier.proposal)
    verdict, randomness = judged(verifier, tree, P, False)
    assert randomness.asked == [0.0]
    assert verdict.path == [0]


@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal, Block, KSeq, GreedyMultiDraft])
def test_a_drafter_with_a_smaller_vocabulary_offers_the_rest_with_probability_zero(verifier):
    tree = drawn_tree([0], [0], [0.7, 0.3], verifier.proposal)
    verdict, randomness = judged(verifier, tree, P, False)
    assert randomness.asked == pytest.approx([0.2 / 0.7])
    assert randomness.drawn == [pytest.approx([0.0, 0.4, 0.6])]
    assert verdict == ([0], 2)


@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal, Block, KSeq, GreedyMultiDraft])
def test_a_tree_of_another_kind_is_refused(verifier):
    tree = drawn_tree([0], [0], Q, Proposal.TOP_K)
    with pytest.raises(ConfigError, match=f"{verifier.__name__} judges {verifier.proposal} trees, not top-k ones"):
        judged(verifier, tree, P)


def test_a_tree_that_does_not_say_where_its_children_came_from_is_refused():
    tree = drawn_tree([0], [0], Q)
    blind = replace(tree, draft_probs={})
    with pytest.raises(ConfigError, match="which distribution"):
        judged(RRSw, blind, P)


def test_the_small_rules_where_numbers_run_out():
    p, q, nothing = torch.tensor(P), torch.tensor(Q), torch.zeros(3)
    assert ratio(p, q, 0) == pytest.approx(1 / 3)
    assert ratio(p, nothing, 0) == 0
    assert torch.equal(residual(p, p), p)
    assert torch.equal(residual(p, nothing), p / p.sum())
    assert torch.equal(normalise(nothing, p), p)
    assert without(q, 0).tolist() == pytest.approx([0, 0.75, 0.25])
    assert torch.equal(without(torch.tensor([0.0, 1.0, 0.0]), 1), nothing)
