"""Traversal: the worked example step by step, and its place between the other verifiers."""

import pytest
import torch

from drafttree import Sampling
from drafttree.exactness import law
from drafttree.verifiers import Block, PointMass, RRSw, Traversal
from drafttree.verifiers.base import TreeView
from drafttree.verifiers.traversal import ChainNode
from testing.toy_pairs import CHAINS, LARGE_TREES, SMALL_TREES, Told, ToyPair, cut, drawn_tree, judged, toy_pair

TARGET, DRAFT = [0.3, 0.4, 0.3], [0.6, 0.3, 0.1]
EXAMPLE = drawn_tree(tokens=[0, 1, 2], parents=[0, 1, 1], draft=DRAFT)
"""The root's child a (token 0) has the children b (token 1) and c (token 2)."""


def test_the_rows_and_rates_of_the_worked_example():
    logits = torch.tensor(TARGET, dtype=torch.float64).log().expand(4, -1)
    view = TreeView(EXAMPLE, logits, Sampling(1.0), Told())
    a = ChainNode(view, 0, torch.ones(())).child(1)
    assert float(a.rate) == pytest.approx(0.5)
    assert float(a.child(2).rate) == pytest.approx(2 / 3)
    a.reject(1)
    assert float(a.rate) == pytest.approx(1 / 11)
    assert a.target.tolist() == pytest.approx([0, 0, 1])
    assert a.draft is not None
    assert a.draft.tolist() == pytest.approx([6 / 7, 0, 1 / 7])
    assert float(a.child(3).rate) == pytest.approx(7 / 11)


def test_the_worked_example_asks_for_the_leaves_first_and_last_for_the_root():
    verdict, randomness = judged(Traversal, EXAMPLE, TARGET, False, False, False)
    assert randomness.asked == pytest.approx([2 / 3, 7 / 11, 0])
    assert randomness.drawn == [pytest.approx([0, 1 / 3, 2 / 3])]
    assert verdict == ([0], 2)


def test_an_accepted_leaf_takes_its_path_and_draws_from_its_own_row():
    verdict, randomness = judged(Traversal, EXAMPLE, TARGET, True)
    assert verdict == ([0, 1, 2], 1)
    assert randomness.drawn == [pytest.approx(TARGET)]


def test_a_node_accepted_after_its_children_draws_from_what_they_left():
    tree = drawn_tree(tokens=[0, 1], parents=[0, 1], draft=DRAFT)
    verdict, randomness = judged(Traversal, tree, TARGET, False, True)
    assert randomness.asked == pytest.approx([2 / 3, 1 / 11])
    assert randomness.drawn == [pytest.approx([0, 0, 1])]
    assert verdict == ([0, 1], 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("seed", range(3))
def test_on_chains_the_law_of_the_length_is_that_of_block(policy, seed):
    tables = toy_pair(seed)
    ours, blocks = (law(tables.target, tables.draft, policy, verifier) for verifier in (Traversal, Block))
    assert ours.lengths == pytest.approx(blocks.lengths, abs=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [*CHAINS, *SMALL_TREES])
def test_accepts_at_least_as_many_tokens_as_rrsw(name):
    gained = gains(CHAINS.get(name) or SMALL_TREES[name], range(100, 101))
    assert min(gained) > -1e-12


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CHAINS, *SMALL_TREES, *LARGE_TREES])
def test_accepts_at_least_as_many_tokens_as_rrsw_in_more_worlds(name):
    policy = (CHAINS | SMALL_TREES | LARGE_TREES)[name]
    gained = gains(policy, range(200, 206 if name in LARGE_TREES else 240))
    assert min(gained) > -1e-12


@pytest.mark.slow
def test_accepts_more_tokens_than_rrsw_on_a_chain():
    assert max(gains(CHAINS["chain-3"], range(4))) > 0.01


def gains(policy, seeds) -> list[float]:
    """Expected accepted tokens beyond those of RRSw, per world."""
    found = []
    for seed in seeds:
        tables = toy_pair(seed)
        ours, theirs = (law(tables.target, tables.draft, policy, verifier) for verifier in (Traversal, RRSw))
        found.append(ours.expected_accepted - theirs.expected_accepted)
    return found


@pytest.mark.few(7)
@pytest.mark.parametrize("verifier", [Traversal, RRSw, Block])
@pytest.mark.parametrize("seed", range(4))
def test_with_certain_candidates_it_is_the_naive_walk(verifier, seed):
    tables = toy_pair(seed)
    tables = ToyPair(tables.target, cut(tables.draft, 1))
    ours, naive = (law(tables.target, tables.draft, CHAINS["chain-3"], each) for each in (verifier, PointMass))
    assert {text: weight for text, weight in ours.committed.items() if weight} == pytest.approx(naive.committed)


def test_equal_rows_accept_the_whole_tree():
    verdict, randomness = judged(Traversal, drawn_tree([1, 0], [0, 1], TARGET), TARGET, True)
    assert randomness.asked == [1.0]
    assert verdict.path == [0, 1, 2]


def test_a_child_the_draft_cannot_have_drawn_is_not_accepted():
    verdict, randomness = judged(Traversal, drawn_tree([1], [0], [1.0, 0.0, 0.0]), TARGET, False)
    assert randomness.asked == [0.0]
    assert verdict.path == [0]
