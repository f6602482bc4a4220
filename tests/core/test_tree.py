"""Draft trees against plain walks along the parents."""

import math
from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.core.tree import DraftTree, Layer, PartialTree, TreeBuilder, Verdict

PADDING = -math.inf

nodes = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0.0, -0.5, -1.0, -2.0])), max_size=24)


def chain(length: int) -> list[tuple[int, float]]:
    return [(index, -0.1) for index in range(length)]


def plant(batch: list[list[tuple[int, float]]]) -> DraftTree:
    """A tree per list of (parent, log-probability), padded to the longest, in breadth-first order."""
    width = 1 + max(map(len, batch))
    grown = [_sorted(nodes) for nodes in batch]
    parents, paths, depths = [], [], []
    for nodes in grown:
        parent, path, depth = [-1], [0.0], [0]
        for up, value in nodes:
            parent.append(up)
            path.append(path[up] + value)
            depth.append(depth[up] + 1)
        missing = width - len(parent)
        parents.append(parent + [0] * missing)
        paths.append(path + [PADDING] * missing)
        depths.append(max(depth))
    tokens = torch.arange(len(batch) * width).view(len(batch), width)
    scores = torch.tensor(paths)
    scores[:, 0] = math.inf
    levels = max(1, *depths) if width > 1 else 0
    return DraftTree(tokens, torch.tensor(parents), torch.tensor(paths), scores, levels)


def _sorted(nodes: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Random parents made into a breadth-first tree."""
    depth, raw = [0], []
    for number, (draw, value) in enumerate(nodes):
        raw.append((draw % (number + 1), value))
        depth.append(depth[raw[-1][0]] + 1)
    order = sorted(range(len(depth)), key=depth.__getitem__)
    place = {old: new for new, old in enumerate(order)}
    return [(place[raw[old - 1][0]], raw[old - 1][1]) for old in order[1:]]


def walk_up(tree: DraftTree, text: int, node: int) -> list[int]:
    """The node and its ancestors, root last."""
    seen = [node]
    while (node := int(tree.parents[text, node])) >= 0:
        seen.append(node)
    return seen


@settings(max_examples=40, deadline=None)
@given(nodes, nodes)
def test_ancestors_and_depths_are_those_of_a_walk_to_the_root(one, other):
    tree = plant([one, other])
    for text in range(2):
        for node in range(tree.size):
            path = walk_up(tree, text, node)
            assert tree.ancestors[text, node].nonzero()[:, 0].tolist() == sorted(path)
            assert int(tree.depths[text, node]) == len(path) - 1


def test_a_chain_of_130_nodes_sees_all_of_itself():
    tree = plant([chain(130), chain(3)])
    assert tree.depths[0].tolist() == list(range(131))
    assert torch.equal(tree.ancestors[0], torch.ones(131, 131).tril().bool())


def test_a_chain_of_every_length_up_to_40_is_reached_to_its_end():
    for length in range(1, 41):
        assert int(plant([chain(length)]).depths.max()) == length


def test_a_tree_with_as_many_nodes_as_levels_need_not_be_a_chain():
    grown, zeros = TreeBuilder(torch.tensor([[7]])), torch.zeros(1, 3).long()
    for parents, scores in ((zeros, [[-1.0, -2.0, -3.0]]), (zeros[:, :1] + 1, [[-9.0]]), (zeros[:, :1] + 4, [[-9.5]])):
        row = torch.tensor(scores)
        grown.add(torch.ones_like(parents), parents, row, row)
    cut = grown.tree().best(4)
    assert cut.size == cut.levels + 1
    assert cut.depths.tolist() == [[0, 1, 1, 1]]


def test_the_ancestors_of_a_chain_are_those_of_any_tree():
    grown = TreeBuilder(torch.tensor([[7], [3]]))
    for parent in range(5):
        row = torch.full((2, 1), -1.0)
        grown.add(torch.ones(2, 1).long(), torch.full((2, 1), parent), row, row)
    tree = grown.tree()
    assert tree.is_chain
    assert torch.equal(tree.ancestors, replace(tree, is_chain=False).ancestors)


@settings(max_examples=40, deadline=None)
@given(nodes, nodes, st.integers(1, 26))
def test_best_takes_the_highest_scores_and_keeps_them_connected(one, other, size):
    tree = plant([one, other])
    cut = tree.best(size)
    assert cut.size == min(size, tree.size)
    for text in range(2):
        scores = tree.scores[text].tolist()
        kept = sorted(sorted(range(tree.size), key=lambda node: (-scores[node], node))[:size])
        assert cut.tokens[text].tolist() == tree.tokens[text, kept].tolist()
        assert cut.path_logprobs[text].tolist() == tree.path_logprobs[text, kept].tolist()
        expected = [kept.index(up) if up >= 0 else -1 for up in tree.parents[text, kept].tolist()]
        assert cut.parents[text].tolist() == expected
        assert all(up < node for node, up in enumerate(expected))


def test_best_prefers_a_parent_to_its_certain_child():
    tree = plant([[(0, -1.0), (1, 0.0), (2, 0.0)]])
    assert tree.best(2).tokens.tolist() == [[0, 1]]


def test_padding_is_not_valid_and_the_root_always_is():
    assert plant([chain(2), []]).valid.tolist() == [[True, True, True], [True, False, False]]


def test_a_lone_root_is_a_tree_of_one_node_and_no_levels():
    tree = DraftTree.rooted(torch.tensor([[7], [3]]))
    assert (tree.size, tree.levels) == (1, 0)
    assert tree.depths.tolist() == [[0], [0]]
    assert tree.ancestors.tolist() == [[[True]], [[True]]]


def test_a_builder_counts_padding_in_its_size_alone():
    grown = TreeBuilder(torch.tensor([[7], [3]]))
    row = torch.tensor([[-1.0, -2.0, PADDING], [-1.0, PADDING, PADDING]])
    grown.add(torch.tensor([[1, 2, 9], [1, 2, 9]]), torch.zeros(2, 3, dtype=torch.long), row, row)
    assert (grown.size, grown.tree().levels) == (4, 1)
    assert grown.nodes.tolist() == [[3], [2]]
    grown.trim(2)
    assert (grown.size, grown.tree().levels) == (3, 1)
    assert grown.tree().parents.tolist() == [[-1, 0, 0], [-1, 0, 0]]
    grown.trim(0)
    assert (grown.size, grown.tree().levels) == (1, 0)


def test_a_nodes_own_logprob_is_its_paths_minus_its_parents():
    tree = plant([[(0, -1.0), (1, -0.5), (0, -2.0)]])
    own = dict(zip(tree.paths(), tree.node_logprobs[0].tolist(), strict=True))
    assert sorted(own.values()) == [-2.0, -1.0, -0.5, 0.0]
    assert own[()] == 0.0


def test_a_verdict_is_read_as_it_was_made():
    verdict = Verdict([[0, 2, 5], [0]], [7, 3])
    assert list(verdict.bonus) == [7, 3]
    assert verdict.host == [([0, 2, 5], 7), ([0], 3)]


def test_a_layer_adds_its_candidates_to_their_parents():
    logprobs = torch.tensor([[[-0.5, -1.0], [-0.25, -3.0]]])
    parents = torch.tensor([[-1.0, -2.0]])
    tree = PartialTree(TreeBuilder(torch.tensor([[3]])))
    layer = Layer(logprobs, parents, parents, depth=2, tree=tree, score=lambda own: own.path_logprobs - 1)
    assert layer.scores.tolist() == [[[-2.5, -3.0], [-3.25, -6.0]]]
    assert layer.path_logprobs.tolist() == [[[-1.5, -2.0], [-2.25, -5.0]]]
    assert layer.rank.tolist() == [0, 1]
    torch.testing.assert_close(layer.confidence, torch.tensor([[[math.exp(-0.5)], [math.exp(-0.25)]]]))
    assert layer.possible.all()
