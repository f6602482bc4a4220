"""Draft trees against plain walks along the parents."""

import math
from dataclasses import replace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree import DraftTree, Layer
from drafttree.core.tree import GrowingTree

nodes = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, -0.5, -1.0, -2.0])), max_size=24)


def chain(length: int) -> list[tuple[int, float]]:
    return [(index, -0.1) for index in range(length)]


def plant(nodes: list[tuple[int, float]]) -> DraftTree:
    """A tree of a list of (parent, log-probability), in breadth-first order."""
    parents, paths, depths = [-1], [0.0], [0]
    for up, value in _sorted(nodes):
        parents.append(up)
        paths.append(paths[up] + value)
        depths.append(depths[up] + 1)
    return DraftTree([*range(len(parents))], parents, paths, [math.inf, *paths[1:]], max(depths))


def _sorted(nodes: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Random parents made into a breadth-first tree."""
    depth, raw = [0], []
    for number, (draw, value) in enumerate(nodes):
        raw.append((draw % (number + 1), value))
        depth.append(depth[raw[-1][0]] + 1)
    order = sorted(range(len(depth)), key=depth.__getitem__)
    place = {old: new for new, old in enumerate(order)}
    return [(place[raw[old - 1][0]], raw[old - 1][1]) for old in order[1:]]


def walk_up(tree: DraftTree, node: int) -> list[int]:
    """The node and its ancestors, root last."""
    seen = [node]
    while (node := tree.parents[node]) >= 0:
        seen.append(node)
    return seen


@settings(max_examples=80)
@given(nodes)
def test_ancestors_depths_and_children_are_those_of_a_walk_to_the_root(drawn):
    tree = plant(drawn)
    for node in range(tree.size):
        path = walk_up(tree, node)
        assert tree.ancestors[node].nonzero()[0].tolist() == sorted(path)
        assert tree.depths[node] == len(path) - 1
        assert [*tree.children[node]] == [other for other in range(tree.size) if tree.parents[other] == node]
    assert tree.is_chain == all(up == node - 1 for node, up in enumerate(tree.parents))


def test_a_chain_of_130_nodes_sees_all_of_itself():
    tree = plant(chain(130))
    assert tree.is_chain
    assert tree.depths == tuple(range(131))
    assert np.array_equal(tree.ancestors, np.tri(131, dtype=bool))


def test_a_tree_with_as_many_nodes_as_levels_need_not_be_a_chain():
    scores = [math.inf, -1.0, -2.0, -3.0, -9.0, -9.5]
    cut = DraftTree([*range(6)], [-1, 0, 0, 0, 1, 4], scores, scores, 3).best(4)
    assert cut.size == cut.levels + 1
    assert cut.depths == (0, 1, 1, 1)
    assert not cut.is_chain


def test_the_ancestors_of_nodes_in_any_order_are_found():
    tree = DraftTree([0] * 5, [-1, 0, 1, 0, 3], [0.0] * 5, [0.0] * 5, 2)
    assert [row.nonzero()[0].tolist() for row in tree.ancestors] == [[0], [0, 1], [0, 1, 2], [0, 3], [0, 3, 4]]


@settings(max_examples=80)
@given(nodes, st.integers(1, 26))
def test_best_takes_the_highest_scores_and_keeps_them_connected(drawn, size):
    tree = plant(drawn)
    cut = tree.best(size)
    kept = sorted(sorted(range(tree.size), key=lambda node: (-tree.scores[node], node))[:size])
    assert [*cut.tokens] == kept
    assert [*cut.path_logprobs] == [tree.path_logprobs[node] for node in kept]
    assert [*cut.parents] == [kept.index(tree.parents[node]) if node else -1 for node in kept]
    assert all(up < node for node, up in enumerate(cut.parents))


def test_best_prefers_a_parent_to_its_certain_child():
    assert plant([(0, -1.0), (1, 0.0), (2, 0.0)]).best(2).tokens == (0, 1)


def test_best_keeps_the_distributions_of_the_nodes_that_stay():
    tree = plant([(0, -1.0), (0, -0.5), (2, -0.1)])
    rows = {node: torch.full((2,), float(node)) for node in range(3)}
    cut = replace(tree, draft_probs=rows).best(3)
    assert cut.tokens == (0, 2, 3)
    assert {node: row.tolist() for node, row in cut.draft_probs.items()} == {0: [0.0, 0.0], 1: [2.0, 2.0]}


def test_of_children_with_the_same_token_the_first_is_found():
    tree = DraftTree([5, 7, 6, 7], [-1, 0, 0, 0], [0.0, -1.0, -1.0, -1.0], [math.inf, 3.0, 2.0, 1.0], 3)
    assert (tree.child(0, 7), tree.child(0, 6), tree.child(0, 8)) == (1, 2, None)


def test_a_lone_root_is_a_tree_of_one_node_and_no_levels():
    tree = DraftTree.rooted(7)
    assert (tree.size, tree.levels, tree.is_chain) == (1, 0, True)
    assert tree.depths == (0,)
    assert tree.ancestors.tolist() == [[True]]


def test_a_nodes_own_logprob_is_its_paths_minus_its_parents():
    tree = plant([(0, -1.0), (1, -0.5), (0, -2.0)])
    own = dict(zip(tree.paths(), tree.node_logprobs, strict=True))
    assert sorted(own.values()) == [-2.0, -1.0, -0.5, 0.0]
    assert own[()] == 0.0


def test_a_layer_has_what_follows_from_its_candidates_and_the_tree():
    growing = GrowingTree(5, 9, state="learned")
    growing.add([7, 8], [0, 0], [-1.0, -2.0], [-1.5, -2.5])
    growing.frontier = [1, 2]
    logprobs = np.array([[-0.5, -1.0], [-0.25, -3.0]])
    paths = logprobs + np.array([[-1.0], [-2.0]])
    layer = Layer(logprobs, paths, paths > -math.inf, 2, growing, score=lambda own: own.path_logprobs - 1)
    assert layer.scores.tolist() == [[-2.5, -3.0], [-3.25, -6.0]]
    assert layer.scores is layer.scores
    assert layer.rank.tolist() == [0, 1]
    np.testing.assert_allclose(layer.confidence, [[math.exp(-0.5)], [math.exp(-0.25)]])
    assert (layer.parent_logprobs.tolist(), layer.parent_scores.tolist()) == ([-1.0, -2.0], [-1.5, -2.5])
    assert (layer.state, layer.tree.paths(), layer.tree.widths) == ("learned", [(), (7,), (8,)], (1,))
