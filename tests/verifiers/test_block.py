"""Block verification: its questions on one chain, and the expected length its paper derives."""

import itertools

import pytest

from drafttree.exactness import law
from drafttree.policies import Chain
from drafttree.verifiers import Block, RRSw
from drafttree.verifiers.base import TreeView
from testing.toy_pairs import drawn_tree, judged, toy_pair

P, Q = [0.3, 0.4, 0.3], [0.6, 0.3, 0.1]


def test_the_questions_of_a_chain():
    """Rates 1/2 and 2/3; of the first, what is left is .05 of .55."""
    verdict, randomness = judged(Block, drawn_tree([0, 1], [0, 1], Q), P, False, False)
    assert randomness.asked == pytest.approx([1 / 11, 2 / 3])
    assert randomness.drawn == [pytest.approx([0, 1 / 3, 2 / 3])]
    assert verdict == ([0], 2)


def test_the_deepest_accepted_place_wins():
    verdict, randomness = judged(Block, drawn_tree([0, 1], [0, 1], Q), P, False, True)
    assert verdict.path == [0, 1, 2]
    assert randomness.drawn == [pytest.approx(P)]
    verdict, randomness = judged(Block, drawn_tree([0, 1], [0, 1], Q), P, True, False)
    assert verdict.path == [0, 1]
    assert randomness.drawn == [pytest.approx([0, 0, 1])]


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", [1, 3, 4])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_expected_length_is_the_sum_of_the_rates(seed, depth):
    tables = toy_pair(seed)
    expected = 0.0
    for path in itertools.product(range(3), repeat=depth):
        chance, rate = 1.0, 1.0
        for place, token in enumerate(path):
            p, q = tables.target.law(path[:place])[token], tables.draft.law(path[:place])[token]
            chance *= q
            rate = min(rate * p / q, 1.0) if q else 0.0
            rest = depth - place - 1
            expected += chance * rate / 3**rest
    found = law(tables.target, tables.draft, Chain(depth=depth), Block)
    assert found.expected_accepted == pytest.approx(expected)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(7))
def test_accepts_at_least_as_many_tokens_as_judging_one_by_one(seed):
    tables = toy_pair(seed)
    ours, theirs = (law(tables.target, tables.draft, Chain(depth=3), verifier) for verifier in (Block, RRSw))
    assert ours.expected_accepted >= theirs.expected_accepted - 1e-12


def test_equal_rows_accept_everything():
    verdict, randomness = judged(Block, drawn_tree([0, 1], [0, 1], P), P, False, True)
    assert randomness.asked == [0.0, 1.0]
    assert verdict.path == [0, 1, 2]


def test_every_row_is_made_once(monkeypatch):
    made = []
    for name in ("target", "draft"):
        own = getattr(TreeView, name)
        monkeypatch.setattr(
            TreeView, name, lambda self, node, name=name, own=own: made.append((name, node)) or own(self, node)
        )
    judged(Block, drawn_tree([0, 1], [0, 1], Q), P, False, True)
    assert sorted(made) == [("draft", 0), ("draft", 1), ("target", 0), ("target", 1), ("target", 2)]
