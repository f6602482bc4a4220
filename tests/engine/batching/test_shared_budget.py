import itertools
import math
import random

import pytest

from drafttree import DraftTree
from drafttree.core import Proposal
from drafttree.engine.batching.shared_budget import best_count, cut, falling, survival
from drafttree.errors import ConfigError
from drafttree.policies.calibration import SurvivalCalibration


def tree_of(parents: list[int], logprobs: list[float], proposal: Proposal = Proposal.TOP_K) -> DraftTree:
    """A tree with these parents, and log-probabilities given them; tokens count up."""
    paths, depths = [0.0], [0]
    for parent, logprob in zip(parents[1:], logprobs[1:], strict=True):
        paths.append(paths[parent] + logprob)
        depths.append(depths[parent] + 1)
    return DraftTree([*range(len(parents))], parents, paths, [math.inf, *paths[1:]], max(depths), proposal)


def random_tree(draws: random.Random) -> DraftTree:
    parents = [-1, 0]
    for _ in range(draws.randrange(6)):
        parents.append(draws.randrange(parents[-1], len(parents)))
    logprobs = [0.0, *sorted((-3 * draws.random() for _ in parents[1:]), reverse=True)]
    return tree_of(parents, logprobs)


def test_the_count_maximises_tokens_by_time():
    draws = random.Random(0)
    for _ in range(200):
        chances = sorted((draws.random() for _ in range(12)), reverse=True)
        steps = list(itertools.accumulate(draws.random() for _ in range(40)))
        rows, batch, spent = draws.randrange(1, 20), draws.randrange(1, 8), draws.random()
        rates = [(batch + sum(chances[:k])) / (1 + steps[rows + k] + spent) for k in range(13)]
        found = best_count(chances, rows, batch, lambda size, steps=steps: 1 + steps[size], spent)
        assert rates[found] == pytest.approx(max(rates))


def test_nothing_is_drafted_where_every_row_costs_as_much_as_the_first():
    assert best_count([0.9] * 8, 4, 4, lambda rows: float(rows)) == 0


def test_everything_is_drafted_where_rows_are_free():
    assert best_count([0.1] * 8, 4, 4, lambda rows: 1.0) == 8


def test_survival_multiplies_the_rates_along_a_path():
    tree = tree_of([-1, 0, 0, 1], [0.0, -0.2, -1.7, -0.5])
    calibration = SurvivalCalibration.empty()
    first, second = calibration.log_acceptance([-0.2, -1.7], 1)
    (third,) = calibration.log_acceptance([-0.5], 2)
    assert survival(tree, calibration) == pytest.approx([0.0, first, second, first + third])


def test_falling_has_the_chances_of_all_trees_without_roots():
    assert falling([[0.0, math.log(0.5)], [0.0], [0.0, math.log(0.7), math.log(0.1)]]) == pytest.approx([0.7, 0.5, 0.1])


def test_cut_keeps_the_likeliest_nodes_of_all_trees_and_they_are_trees():
    draws = random.Random(1)
    for _ in range(100):
        trees = [random_tree(draws) for _ in range(4)]
        chances = [survival(tree, SurvivalCalibration.empty()) for tree in trees]
        everything = sorted(chance for own in chances for chance in own[1:])
        count = draws.randrange(len(everything) + 2)
        kept = cut(trees, chances, count)
        assert sum(tree.size - 1 for tree in kept) == min(count, len(everything))
        found = []
        for tree, whole, own in zip(kept, trees, chances, strict=True):
            assert set(tree.paths()) <= set(whole.paths())  # so each node's ancestors are there as well
            found += [own[token] for token in tree.tokens if token]
        assert sorted(found) == pytest.approx(everything[len(everything) - len(found) :])


def test_cut_leaves_a_whole_tree_as_it_is():
    tree = tree_of([-1, 0, 1], [0.0, -0.1, -0.1])
    assert cut([tree], [survival(tree, SurvivalCalibration.empty())], 2)[0] is tree


def test_trees_whose_children_were_drawn_are_not_cut():
    tree = tree_of([-1, 0], [0.0, -0.1], Proposal.WITHOUT_REPLACEMENT)
    with pytest.raises(ConfigError, match="cannot be cut; limit their levels before they are drawn"):
        cut([tree], [[0.0, -0.1]], 0)
