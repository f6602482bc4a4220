"""Rejection of point masses: the law of the naive walk, and an expected length that is a plain sum."""

import math

import pytest

from drafttree.core import Proposal
from drafttree.exactness import law, trees
from drafttree.verifiers import PointMass
from testing.toy_pairs import CHAINS, RERANKING, SMALL_TREES, drawn_tree, judged, toy_pair


class NaiveWalk(PointMass):
    """SpecInfer's loop: draw from the target at every node and descend while the token is in the tree."""

    def judge(self, view):
        path = [0]
        while True:
            token = view.randomness.draw(view.target(path[-1]))
            child = view.child(path[-1], token)
            if child is None:
                return path, token
            path.append(child)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["chain-3", "ragged", "dynatree", "talon", "eagle", "opt-tree", "dyspec"])
def test_rejecting_point_masses_has_the_law_of_the_naive_walk(name):
    policy = (CHAINS | SMALL_TREES | RERANKING)[name]
    for seed in (0, 1, 3, 6):
        tables = toy_pair(seed)
        ours, theirs = (law(tables.target, tables.draft, policy, verifier) for verifier in (PointMass, NaiveWalk))
        assert ours.committed == pytest.approx({k: w for k, w in theirs.committed.items() if w > 1e-15}, abs=1e-12)


@pytest.mark.parametrize("name", RERANKING)
def test_the_expected_length_is_the_sum_of_the_targets_path_probabilities(name):
    tables = toy_pair(1)
    ((chance, tree),) = trees(tables.draft, RERANKING[name], PointMass)
    paths = {0: ()}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if node:
            paths[node] = (*paths[parent], token)
    expected = sum(
        math.prod(tables.target.law(path[:place])[token] for place, token in enumerate(path))
        for path in paths.values()
        if path
    )
    assert chance == 1
    found = law(tables.target, tables.draft, RERANKING[name], PointMass)
    assert found.expected_accepted == pytest.approx(expected)


@pytest.mark.parametrize("proposal", Proposal)
def test_it_judges_trees_of_every_kind(proposal):
    verdict, randomness = judged(PointMass, drawn_tree([1, 0], [0, 1], [0.5, 0.5], proposal), [0.3, 0.7], True, False)
    assert verdict.path == [0, 1]
    assert randomness.asked == pytest.approx([0.7, 0.3])
    assert randomness.drawn == [pytest.approx([0.0, 1.0])]


def test_of_equal_siblings_the_first_is_taken():
    tree = drawn_tree([1, 1], [0, 0], [0.5, 0.5], Proposal.WITH_REPLACEMENT)
    assert judged(PointMass, tree, [0.3, 0.7], True)[0].path == [0, 1]
    verdict, randomness = judged(PointMass, tree, [0.3, 0.7], False, False)
    assert randomness.asked == pytest.approx([0.7, 0.0])
    assert verdict.path == [0]
