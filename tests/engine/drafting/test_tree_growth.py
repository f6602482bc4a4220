"""Every policy against the papers' pseudocode in plain Python, over draft distributions drawn at random."""

import hashlib
import json
import math
import random
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drafttree import DraftTree
from drafttree.core import Proposal, SeededRandomness
from drafttree.core.tree import GrowthObserver, Rule
from drafttree.drafters.session import draft_level
from drafttree.engine import grow
from drafttree.engine.drafting.tree_growth import DraftRows
from drafttree.errors import ConfigError
from drafttree.evaluation.toy_texts import toy_tree
from drafttree.exactness import TabularModel
from drafttree.loading import make_policy
from drafttree.policies import (
    POLICIES,
    Auto,
    Chain,
    DynaTree,
    DySpec,
    Eagle,
    Fixed,
    OptTree,
    Talon,
    Template,
    TreePolicy,
)
from drafttree.policies.template import SHIPPED
from drafttree.verifiers import RRS, GreedyMultiDraft, PointMass, RRSw
from helpers import papers
from helpers.reads import Reads
from testing.costs import new_states
from testing.toy import ToyDraft

ROOT = 0
FAR = 1000

few = settings(max_examples=40)
budgets = st.integers(1, 24)
shares = st.floats(0, 1)


class ToyPair:
    """A draft distribution for every path: a pure function of a seed.

    With `beyond`, this share of it falls on no token at all: rows have a column for it, and may have nothing else.
    """

    def __init__(
        self, seed: int, vocab: int = 6, scale: float = 2.0, masked: float = 0.0, beyond: float | None = None
    ) -> None:
        self.seed, self.vocab, self.scale, self.masked, self.beyond = seed, vocab, scale, masked, beyond
        self.q = cache(self._row)

    def __call__(self, prefix) -> list[float]:
        row = self.q(tuple(prefix[1:]))
        if self.beyond is None:
            return row
        left = 1 - sum(map(math.exp, row))
        return [*row, math.log(left) if left > 1e-9 else -math.inf]

    def __repr__(self) -> str:
        return f"World({self.seed}, {self.vocab}, {self.scale}, {self.masked}, {self.beyond})"

    def _row(self, path: tuple[int, ...]) -> list[float]:
        rng = random.Random(f"{self.seed} {path}")
        logits = [rng.gauss(0, self.scale) for _ in range(self.vocab)]
        hidden = [rng.random() < self.masked for _ in range(self.vocab)]
        if all(hidden) and self.beyond:
            return [-math.inf] * self.vocab
        logits = [-math.inf if hide and not all(hidden) else logit for logit, hide in zip(logits, hidden, strict=True)]
        highest = max(logits)
        total = highest + math.log(sum(math.exp(logit - highest) for logit in logits))
        return [logit - total + math.log(max(1 - (self.beyond or 0.0), 1e-300)) for logit in logits]


worlds = st.builds(
    ToyPair,
    st.integers(0, 10**6),
    st.integers(2, 8),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.sampled_from([0.0, 0.0, 0.6]),
    st.sampled_from([0.0, 0.0, 0.3, 0.8]),
)


class ToyRows(DraftRows):
    """Sessions that draft one after the other, as growth asks for them.

    Attributes:
        passes: levels that were asked for.
    """

    def __init__(self, *laws, dtype: torch.dtype = torch.float64) -> None:
        self.sessions = [ToyDraft([law], [[ROOT]], dtype) for law in laws]
        self.passes = 0

    def draft_root(self) -> torch.Tensor:
        self.passes += 1
        return torch.cat([session.draft_root()[0] for session in self.sessions])

    def draft_level(self, frontiers) -> torch.Tensor:
        self.passes += 1
        return draft_level(self.sessions, frontiers, torch.device("cpu"))


def draft_all(policy, *worlds, max_levels: int = FAR, **options) -> tuple[list[DraftTree], ToyRows]:
    """Grow a tree per world in one batch; the trees and the drafter that was asked."""
    drafted, states = ToyRows(*worlds), new_states(policy, len(worlds))
    levels = [max_levels] * len(worlds)
    vocab = getattr(worlds[0], "vocab", None)
    return grow(policy, drafted, [ROOT] * len(worlds), levels, states=states, vocab=vocab, **options), drafted


def draft(policy, world, **options) -> tuple[DraftTree, ToyRows]:
    """Grow one tree."""
    (tree,), drafted = draft_all(policy, world, **options)
    return tree, drafted


def draft_law(policy, law, dtype: torch.dtype = torch.float64) -> DraftTree:
    """Grow one tree from a law of its own in a dtype."""
    (tree,) = grow(policy, ToyRows(law, dtype=dtype), [ROOT], [FAR], states=new_states(policy, 1))
    return tree


def paths_of(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Every path of tokens with its log-probability."""
    paths = tree.paths()
    assert len(set(paths)) == len(paths), "a node was drafted twice"
    return dict(zip(paths, tree.path_logprobs, strict=True))


def agree(policy, world: ToyPair, expected: papers.Tree, max_levels: int = FAR) -> None:
    grown = paths_of(draft(policy, world, max_levels=max_levels)[0])
    assert grown == pytest.approx(expected, abs=1e-9)


@few
@given(worlds, st.integers(1, 12), budgets)
def test_chain(world, depth, budget):
    agree(Chain(depth=depth, budget=budget), world, papers.chain(world.q, depth=depth, budget=budget))


@few
@given(
    worlds,
    st.fixed_dictionaries(
        {
            "depth": st.integers(1, 5),
            "breadth": st.integers(1, 4),
            "threshold": st.one_of(st.just(0.0), st.floats(0, 0.3)),
            "level1_top1": st.booleans(),
            "first_come": st.booleans(),
            "budget": budgets,
        }
    ),
)
def test_fixed_is_dynatree_v1(world, options):
    agree(Fixed(**options), world, papers.fixed(world.q, **options))


@few
@given(worlds, st.integers(1, 4), st.integers(1, 4), st.floats(0, 0.3), budgets)
def test_first_come_with_a_drafted_root_is_algorithm_1_of_dynatree_v1(world, depth, breadth, threshold, budget):
    options = {"breadth": breadth, "threshold": threshold, "budget": budget}
    policy = Fixed(depth=depth + 1, level1_top1=True, first_come=True, **options)
    agree(policy, world, papers.creation_loop(world.q, depth=depth, **options))


@st.composite
def dynatree_options(draw):
    low, high = sorted(draw(st.tuples(shares, shares)))
    base_depth, max_depth = sorted(draw(st.tuples(st.integers(1, 6), st.integers(1, 6))))
    return {
        "base_depth": base_depth,
        "max_depth": max_depth,
        "low": low,
        "high": high,
        "min_breadth": draw(st.integers(1, 2)),
        "mid_breadth": draw(st.integers(1, 3)),
        "max_breadth": draw(st.integers(1, 4)),
        "stop_below": draw(st.floats(0, 0.3)),
        "deep_above": draw(shares),
        "prune_below": draw(st.floats(0, 0.3)),
        "breadth": draw(st.booleans()),
        "depth": draw(st.booleans()),
        "level1_top1": draw(st.booleans()),
        "first_come": draw(st.booleans()),
        "budget": draw(budgets),
    }


@settings(max_examples=120)
@given(worlds, dynatree_options())
def test_dynatree_v2_and_its_ablations(world, options):
    agree(DynaTree(**options), world, papers.dynatree(world.q, **options))


@few
@given(worlds, budgets, st.integers(1, 9), st.one_of(st.just(0.0), shares), st.one_of(st.none(), st.integers(1, 4)))
def test_talon(world, budget, width, margin, depth):
    options = {"budget": budget, "width": width, "margin": margin, "depth": depth}
    agree(Talon(**options), world, papers.talon(world.q, **options))


@few
@given(worlds, budgets, st.integers(1, 9), shares, st.integers(0, 3))
def test_talon_with_k_robust_levels(world, budget, width, margin, robust):
    options = {"budget": budget, "width": width, "margin": margin, "robust": robust}
    agree(Talon(**options), world, papers.talon(world.q, **options))


@few
@given(worlds, st.integers(1, 5), st.integers(1, 5), budgets)
def test_eagle_that_reranks_the_chosen_only_is_algorithm_1_of_talon(world, depth, top_k, budget):
    options = {"depth": depth, "top_k": top_k, "budget": budget}
    agree(Eagle(chosen_only=True, **options), world, papers.eagle_by_talon(world.q, **options))


@few
@given(worlds, st.integers(1, 5), st.integers(1, 5), budgets)
def test_eagle(world, depth, top_k, budget):
    options = {"depth": depth, "top_k": top_k, "budget": budget}
    agree(Eagle(**options), world, papers.eagle(world.q, **options))


@few
@given(worlds, st.integers(1, 6), st.one_of(st.floats(0.01, 0.99), st.floats(1.01, 1.5)), st.integers(2, 16))
def test_opt_tree(world, depth, threshold, budget):
    options = {"depth": depth, "threshold": threshold, "budget": budget}
    agree(OptTree(**options), world, papers.opt_tree(world.q, **options))


@few
@given(worlds, st.integers(1, 8), st.integers(1, 20))
def test_dyspec_is_the_heap(world, depth, budget):
    agree(DySpec(depth=depth, budget=budget), world, papers.dyspec(world.q, depth=depth, budget=budget))


@st.composite
def rank_paths(draw):
    """A random set of paths closed under taking parents."""
    paths: list[tuple[int, ...]] = [()]
    for parent, rank in draw(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=14)):
        paths.append((*paths[parent % len(paths)], rank))
    return sorted(set(paths) - {()})


@few
@given(worlds, rank_paths(), budgets)
def test_template_follows_any_list_of_paths(world, paths, budget):
    agree(Template(paths=paths, budget=budget), world, papers.template(world.q, paths=paths, budget=budget))


COUNTS = {
    "medusa-63": "root:10 0:10 1:7 2:3 3:2 4:1 5:1 6:1 7:1 8:1 9:1 0.0:10 0.1:3 0.2:2 0.3:1 0.4:1 0.5:1 0.6:1 0.7:1 "
    "1.0:2 2.0:1 0.0.0:2",
    "vicuna-7b-stage2": "root:10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 0.0:9 0.1:4 0.2:2 0.3:1 0.4:1 0.5:1 1.0:3 1.1:1 "
    "2.0:1 0.0.0:4 0.0.1:1 0.0.2:1 0.1.0:1",
    "vicuna-13b-stage2": "root:10 0:10 1:4 2:2 3:1 4:1 5:1 0.0:10 0.1:4 0.2:2 0.3:1 0.4:1 0.5:1 1.0:3 1.1:1 2.0:1 "
    "3.0:1 0.0.0:4 0.0.1:2 0.0.2:1 0.1.0:1 1.0.0:1",
    "vicuna-13b-stage1": "root:10 0:10 1:7 2:4 3:2 4:2 5:1 6:1 7:1 8:1 0.0:10 0.1:4 0.2:2 0.3:1 0.4:1 0.5:1 1.0:2 "
    "1.1:1 2.0:1 0.0.0:1",
}
EAGLE_25 = (
    "0 1 2 3 0.0 0.1 0.2 1.0 1.1 2.0 2.1 3.0 0.0.0 0.0.1 0.0.2 0.1.0 0.1.1 0.2.0 0.2.1 1.0.0 "
    "0.0.0.0 0.0.0.1 0.0.0.2 0.0.0.0.0 0.0.0.0.1"
)
TREES = {name: papers.from_counts(counts) for name, counts in COUNTS.items()} | {
    "eagle-sparse": {tuple(map(int, path.split("."))) for path in EAGLE_25.split()}
}


def ranks_of(policy: Template) -> set[tuple[int, ...]]:
    """The paths a template drafts where every node's best tokens are 0, 1, 2 ... in this order."""

    def falling(prefix):
        return [-0.01 * token for token in range(11)]

    return set(paths_of(draft_law(policy, falling))) - {()}


@pytest.mark.parametrize("name", TREES)
def test_shipped_trees_are_the_published_ones(name):
    assert ranks_of(Template(tree=name)) == TREES[name]


def test_published_trees_have_the_published_sizes():
    assert {name: len(paths) for name, paths in TREES.items()} == dict.fromkeys(COUNTS, 63) | {"eagle-sparse": 25}
    assert TREES.keys() == SHIPPED.keys()


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_binary_templates_are_complete_binary_trees(depth):
    paths = ranks_of(Template(tree=f"binary-{depth}"))
    assert len(paths) == 2 ** (depth + 1) - 2
    assert all(set(path) <= {0, 1} and len(path) <= depth for path in paths)


SMALL = {
    "auto": {"depth": 4, "children": 3, "budget": 10},
    "chain": {"depth": 6},
    "fixed": {"depth": 3, "breadth": 2, "budget": 12},
    "template": {"tree": "binary-3", "budget": 11},
    "dynatree": {"max_depth": 4, "base_depth": 2, "stop_below": 0.01, "prune_below": 0.01, "budget": 13},
    "talon": {"width": 3, "budget": 14},
    "eagle": {"depth": 3, "top_k": 3, "budget": 10},
    "opt-tree": {"threshold": 0.2, "budget": 9},
    "dyspec": {"depth": 5, "budget": 12},
}
every_policy = pytest.mark.parametrize("name", SMALL)


def small(name: str):
    return POLICIES[name](**SMALL[name])


def test_every_policy_is_tried_here():
    assert SMALL.keys() == POLICIES.keys()


@pytest.mark.few(5)
@every_policy
@settings(max_examples=25)
@given(worlds, worlds)
@example(ToyPair(1794, 7, 1.0, 0.0, 0.8), ToyPair(0, 7, 0.3, 0.0, 0.0))  # the growth of OPT-Tree is its threshold
def test_a_batch_of_two_grows_the_trees_of_two_batches_of_one(name, one, other):
    other.vocab = one.vocab
    together, _ = draft_all(small(name), one, other)
    assert paths_of(together[0]) == pytest.approx(paths_of(draft(small(name), one)[0]), abs=1e-12)
    assert paths_of(together[1]) == pytest.approx(paths_of(draft(small(name), other)[0]), abs=1e-12)


@every_policy
@settings(max_examples=25)
@given(worlds, st.integers(1, 9), st.integers(1, 6))
def test_budget_levels_and_passes_hold_for_every_policy(name, world, budget, max_levels):
    policy = POLICIES[name](**SMALL[name] | {"budget": budget})
    tree, drafted = draft(policy, world, max_levels=max_levels)
    assert tree.size <= budget
    assert tree.levels <= drafted.passes <= min(tree.levels + bool(world.beyond), max_levels)
    assert max(tree.depths) <= tree.levels
    assert all(up < node for node, up in enumerate(tree.parents))
    for path, logprob in paths_of(tree).items():
        steps = [world.q(path[:depth])[token] for depth, token in enumerate(path)]
        assert math.isfinite(logprob)
        assert logprob == pytest.approx(sum(steps), abs=1e-9)


@every_policy
@pytest.mark.parametrize("max_levels", [0, -3])
def test_no_levels_left_drafts_nothing_and_asks_nobody(name, max_levels):
    tree, drafted = draft(small(name), ToyPair(1), max_levels=max_levels)
    assert (tree.size, tree.levels, drafted.passes) == (1, 0, 0)


@every_policy
def test_a_budget_of_one_is_the_root_alone(name):
    tree, drafted = draft(POLICIES[name](**SMALL[name] | {"budget": 1}), ToyPair(1))
    assert (tree.size, tree.levels, drafted.passes) == (1, 0, 0)


@every_policy
def test_every_default_grows_a_tree_of_at_most_its_budget(name):
    policy = POLICIES[name]()
    tree, _ = draft(policy, ToyPair(3, vocab=12))
    assert 1 < tree.size <= policy.budget


def test_opt_tree_stops_every_text_of_a_batch_by_its_own_growth():
    # The unsure text expects .67 tokens from its best three nodes on level 1 and .92 from level 2 on: a growth of .25.
    unsure, sure = [math.log(0.55)] + [math.log(0.45 / 7)] * 7, [0.0] + [-30.0] * 7
    trees, _ = draft_all(OptTree(budget=4, threshold=0.4, depth=3), lambda _: unsure, lambda _: sure)
    assert [max(tree.depths) for tree in trees] == [2, 3]


@few
@given(worlds, st.integers(1, 24), st.integers(1, 9))
def test_talon_fills_its_budget_exactly(world, budget, width):
    world.masked = world.beyond = 0.0
    assert draft(Talon(budget=budget, width=width), world)[0].size == budget


@every_policy
@pytest.mark.parametrize("beyond", [0.0, 0.5])
def test_where_nothing_is_proposed_the_tree_ends_and_empty_levels_do_not_count(name, beyond):
    class Once(ToyPair):
        """Two tokens may follow the root, and nothing them."""

        def _row(self, path):
            return [math.log((1 - beyond) / 2)] * 2 + [-math.inf] * 4 if not path else [-math.inf] * 6

    tree, drafted = draft(small(name), Once(0, beyond=beyond))
    assert set(paths_of(tree)) in ({(), (0,), (1,)}, {(), (0,)})
    assert (tree.levels, drafted.passes) in {(1, 2), (1, 1)}
    tree, drafted = draft(small(name), ToyPair(0, masked=1.0, beyond=1.0))
    assert (tree.size, tree.levels, drafted.passes) == (1, 0, 1)


@every_policy
def test_a_token_that_cannot_follow_never_enters(name):
    world = ToyPair(5, vocab=6, masked=0.7)
    assert all(math.isfinite(logprob) for logprob in paths_of(draft(small(name), world)[0]).values())


def certain(prefix) -> list[float]:
    """One token has all the probability that a float holds, the others a trace of it."""
    return [-60.0, 0.0, -40.0, -50.0]


@every_policy
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_certain_drafter_gives_a_connected_tree(name, dtype):
    tree = draft_law(small(name), certain, dtype)
    assert tree.parents.count(-1) == 1
    assert all(up < node for node, up in enumerate(tree.parents))
    assert (1,) in paths_of(tree)


def equal(prefix) -> list[float]:
    return [0.0] * 4


@pytest.mark.parametrize(
    ("policy", "sizes"),
    [
        (Talon(width=2, margin=1.0, budget=60), [1, 2, 8, 32, 17]),
        (Eagle(depth=3, top_k=2, budget=60), [1, 2, 4, 4]),
        (Fixed(depth=3, breadth=2, threshold=0.0, budget=12), [1, 2, 4, 5]),
        (OptTree(depth=3, threshold=0.0, budget=6), [1, 4, 1]),
        (DySpec(budget=4), [1, 3]),
    ],
    ids=lambda case: type(case).__name__,
)
def test_ties_fill_shallow_levels_first_and_waste_no_node(policy, sizes):
    depths = draft_law(policy, equal).depths
    assert [depths.count(level) for level in range(max(depths) + 1)] == sizes


def test_talon_keeps_every_tie_of_the_best_at_margin_one():
    def two_best(prefix):
        return [0.0, 0.0, -1.0, -1.0]

    depths = draft_law(Talon(width=1, margin=1.0, budget=8), two_best, torch.float32).depths
    assert [depths.count(level) for level in range(4)] == [1, 1, 2, 4]


def test_dynatree_goes_deep_only_strictly_above_the_threshold():
    def coin(prefix):
        return [0.0, 0.0, -math.inf]

    def levels(**options):
        return draft_law(DynaTree(base_depth=1, max_depth=5, mid_breadth=2, **options), coin, torch.float32).levels

    assert levels(deep_above=0.5) == 1
    assert levels(deep_above=0.49) == 2


POLICIES_OF_EVERY_SHAPE = [Chain(), Template(), Template(tree="binary-4"), Eagle(depth=4, top_k=3), Fixed(threshold=0)]
POLICIES_OF_EVERY_SHAPE += [Fixed(depth=5, breadth=2, threshold=0, budget=9), Chain(depth=6, budget=4)]
POLICIES_OF_EVERY_SHAPE += [Eagle(depth=4, top_k=3, chosen_only=True, budget=9), Eagle(budget=8), Fixed(), DynaTree()]
POLICIES_OF_EVERY_SHAPE += [Fixed(depth=5, breadth=3, threshold=0, first_come=True, budget=20), DynaTree(budget=6)]
POLICIES_OF_EVERY_SHAPE += [Talon(width=3, budget=14), OptTree(budget=12), DySpec(budget=12), Auto()]
POLICIES_OF_EVERY_SHAPE += [Talon(width=3, robust=robust, budget=14) for robust in (0, 2)]
POLICIES_OF_EVERY_SHAPE += [Fixed(breadth=3, first_come=True, budget=16), DynaTree(first_come=True, budget=9)]


def test_reads_of_every_kind_are_counted(monkeypatch):
    one = torch.ones(1)
    with monkeypatch.context() as inner, Reads(inner) as reads:
        for asked in (one.tolist, one.item, one.nonzero, one.numpy):
            asked()
        assert int(one)
        assert float(one)
        assert bool(one)
        assert reads.count == 7


@pytest.mark.parametrize("policy", POLICIES_OF_EVERY_SHAPE, ids=repr)
def test_texts_of_a_batch_end_at_their_own_levels(policy):
    worlds, states = [ToyPair(seed) for seed in range(4)], new_states(policy, 4)
    drafted = ToyRows(*worlds)
    together = grow(policy, drafted, [ROOT] * 4, [2, 1, 5, 3], states=states, vocab=6)
    alone = [draft(policy, world, max_levels=most)[0] for world, most in zip(worlds, [2, 1, 5, 3], strict=True)]
    assert [paths_of(tree) for tree in together] == [paths_of(tree) for tree in alone]
    assert [tree.widths for tree in together if tree.levels] == [tree.widths for tree in alone if tree.levels]


WIDE = [Template(tree="medusa-63"), Fixed(threshold=0, breadth=9, depth=2), Talon(width=9, budget=20), Talon()]


@pytest.mark.parametrize("proposal", [each for each in Proposal if each is not Proposal.TOP_K])
@pytest.mark.parametrize("policy", [Chain(), Template(), Fixed(threshold=0), DynaTree(), Fixed(), *WIDE], ids=repr)
def test_sampled_trees_of_a_batch_are_those_of_each_text_alone(policy, proposal):
    worlds = [ToyPair(seed, 12) for seed in range(4)]
    texts = [SeededRandomness(seed, 12, torch.device("cpu")).at(7) for seed in range(4)]
    together, _ = draft_all(policy, *worlds, max_levels=5, proposal=proposal, randomness=texts)
    for world, text, tree in zip(worlds, texts, together, strict=True):
        alone, _ = draft(policy, world, max_levels=5, proposal=proposal, randomness=[text])
        assert (tree.paths(), tree.path_logprobs) == (alone.paths(), alone.path_logprobs)
        assert tree.draft_probs.keys() == alone.draft_probs.keys()
        assert all(torch.equal(tree.draft_probs[node], alone.draft_probs[node]) for node in tree.draft_probs)


class OnlyTheBest:
    """Expands the best node of every frontier, wherever it stands."""

    chances = None

    def __init__(self) -> None:
        self.depths = []

    def choose_frontier(self, texts, depth):
        self.depths.append(depth)
        return [sorted(text.frontier, key=lambda node: -text.path_logprobs[node])[:1] for text in texts]


def test_limits_narrow_what_the_policy_expands():
    policy, gate, worlds = Fixed(depth=4, breadth=3, threshold=0.0, budget=60), OnlyTheBest(), map(ToyPair, range(5))
    trees, drafted = draft_all(policy, *worlds, max_levels=9, limits=gate)
    assert gate.depths == [1, 2, 3]
    assert drafted.passes == 4
    for tree in trees:
        assert tree.widths == (1,) * tree.levels
        for node, children in enumerate(tree.children):
            level = [other for other in range(tree.size) if tree.depths[other] == tree.depths[node]]
            assert not children or node == max(level, key=tree.path_logprobs.__getitem__)
    assert max(tree.levels for tree in trees) == 4


def test_limits_that_leave_out_nothing_changes_nothing():
    class Open:
        def choose_frontier(self, texts, depth):
            return [text.frontier for text in texts]

    worlds = [ToyPair(seed) for seed in range(5)]
    gated, free = (
        draft_all(Talon(width=3, budget=14), *worlds, max_levels=9, limits=gate)[0] for gate in (Open(), None)
    )
    assert list(map(paths_of, gated)) == list(map(paths_of, free))


class Watcher(GrowthObserver):
    """Notes what growth tells.

    Attributes:
        tokens: of the nodes that joined, the root first.
        expanded: nodes whose children were chosen.
        rules: why the other nodes were not expanded.
    """

    def __init__(self) -> None:
        self.tokens, self.expanded, self.rules = [ROOT], [], {}

    def guided(self, logits, seen):
        """Told by who guides, which is not growth."""

    def kept(self, frontier, layer, keep):
        assert len(frontier) == len(keep) == len(layer.logprobs)
        self.expanded += frontier

    def joined(self, tokens, mask):
        self.tokens += tokens[mask].tolist()

    def ended(self, nodes, rule):
        assert not self.rules.keys() & {*nodes}
        self.rules |= dict.fromkeys(nodes, rule)


WATCHED = {"free": {}, "limited": {"limits": OnlyTheBest()}, "drawn": {"proposal": Proposal.WITHOUT_REPLACEMENT}}


@pytest.mark.parametrize("options", WATCHED.values(), ids=WATCHED)
@every_policy
def test_an_observer_is_told_of_every_node_that_it_is_expanded_or_why_not(name, options):
    policy, worlds = small(name), [ToyPair(seed, 12) for seed in range(4)]
    randomness = [SeededRandomness(seed, 12, torch.device("cpu")).at(7) for seed in range(4)]
    options = {"max_levels": 5, "randomness": randomness, **options}
    watchers = [Watcher(), Watcher(), None, Watcher()]
    free, _ = draft_all(policy, *worlds, **options)
    trees, _ = draft_all(policy, *worlds, **options, observers=watchers)
    assert [(tree.tokens, tree.parents) for tree in trees] == [(tree.tokens, tree.parents) for tree in free]
    for tree, watcher in zip(trees, watchers, strict=True):
        if watcher:
            assert sorted([*watcher.expanded, *watcher.rules]) == list(range(len(watcher.tokens)))
            assert {*tree.tokens} <= {*watcher.tokens}
            if tree.size == len(watcher.tokens):
                assert [*tree.tokens] == watcher.tokens


def test_an_observer_is_told_the_rule_that_ends_a_path():
    def rules(policy, **options):
        draft(policy, ToyPair(3, 6, 0.3), observers=[watcher := Watcher()], **options)
        return {*watcher.rules.values()}

    assert rules(Fixed(depth=2, breadth=2, threshold=0.0)) == {Rule.DEPTH}
    assert rules(Fixed(depth=9, breadth=2, threshold=0.0), max_levels=2) == {Rule.DEPTH}
    assert rules(Fixed(depth=9, breadth=3, threshold=0.0, budget=9)) == {Rule.BUDGET}
    assert rules(Fixed(depth=9, breadth=2, threshold=0.3, budget=60)) == {Rule.EXPAND}
    assert rules(OptTree(threshold=10, budget=4)) == {Rule.STOP}
    assert rules(Fixed(depth=2, breadth=2, threshold=0.0), limits=OnlyTheBest()) == {Rule.EXPAND, Rule.DEPTH}


RECORDED = json.loads(Path(__file__).with_name("recorded_trees.json").read_text())
"""Digests of 16 trees each, by policy and by form, grown before growth had fixed shapes (commit d70dd27)."""
FORMS = {verifier.proposal.value: verifier for verifier in (PointMass, RRSw, RRS, GreedyMultiDraft)}


@pytest.fixture(scope="module")
def tables() -> list[TabularModel]:
    return [TabularModel(6, 3, seed, (0.5, 1.5, 3.0, 5.0)[seed % 4]) for seed in range(16)]


def digest(spec: str, form: str, tables: list[TabularModel]) -> str:
    state = hashlib.sha256()
    for seed, table in enumerate(tables):
        randomness = SeededRandomness(seed, 6, torch.device("cpu"))
        tree = toy_tree(table, make_policy(spec), FORMS[form], randomness, 3 + seed % 4)
        state.update(repr((tree.levels, tree.paths())).encode())
    return state.hexdigest()[:16]


@pytest.mark.few(3)
@pytest.mark.parametrize("spec", RECORDED)
def test_trees_are_those_that_were_recorded(spec, tables):
    assert {form: digest(spec, form, tables) for form in RECORDED[spec]} == RECORDED[spec]


class KeepsMore(TreePolicy):
    """A policy of a user's own that re-ranks, and keeps more of a level than its budget."""

    source: ClassVar[str] = "a test"
    reranks: ClassVar[bool] = True

    def levels(self) -> int:
        return 3

    def candidates(self, depth: int) -> int:
        return 4

    def keep(self, layer):
        return layer.possible


def test_a_policy_that_keeps_more_than_its_budget_is_cut_to_its_best_nodes():
    for seed in range(10):
        (tree, _), world = draft(KeepsMore(budget=5), ToyPair(seed), max_levels=5), ToyPair(seed)
        whole, _ = draft(KeepsMore(budget=500), world, max_levels=5)
        assert tree.size == 5
        assert sorted(tree.path_logprobs) == sorted(whole.path_logprobs)[-5:]


@pytest.mark.parametrize("hook", ["keep", "expand", "label", "score"])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (np.ones((1, 4), dtype="U1"), r"<U1 \[1, 4\]"),
        (np.ones((1, 1, 4), dtype=bool), r"bool \[1, 1, 4\]"),
        (np.ones((2, 4), dtype=bool), r"bool \[2, 4\]"),
        (np.ones((1, 3), dtype=bool), r"bool \[1, 3\]"),
        ([True], "list"),
    ],
)
def test_what_a_hook_returns_is_named_if_it_does_not_fit(hook, given, found):
    wrong = type("Wrong", (KeepsMore,), {hook: lambda self, layer: given})
    kind = {"label": "integer", "score": "float"}.get(hook, "bool")
    with pytest.raises(ConfigError, match=rf"Wrong.{hook} returns {found}; .*{kind} array that fits \[1, 4\]"):
        draft(wrong(budget=5), ToyPair(0), max_levels=2)


@pytest.mark.parametrize("hook", ["keep", "expand", "label", "score", "stop"])
def test_a_policy_written_for_torch_is_told_so(hook):
    wrong = type("Wrong", (KeepsMore,), {hook: lambda self, *_: torch.ones(1, 4).bool()})
    with pytest.raises(ConfigError, match=rf"Wrong.{hook} returns a torch tensor; policies decide on numpy arrays"):
        draft(wrong(budget=5), ToyPair(0), max_levels=2)


@pytest.mark.parametrize(("given", "found"), [(np.ones(1, dtype=bool), r"bool \[1\]"), (1, "int")])
def test_whether_a_tree_stops_is_a_bool(given, found):
    wrong = type("Wrong", (KeepsMore,), {"stop": lambda self, *_: given})
    with pytest.raises(ConfigError, match=rf"Wrong.stop returns {found}; it must return a bool, or None"):
        draft(wrong(budget=5), ToyPair(0), max_levels=2)


@pytest.mark.parametrize("stops", [True, np.True_, np.array(True)])
def test_a_policy_may_stop_by_any_bool(stops):
    early = type("Early", (KeepsMore,), {"stop": lambda self, *_: stops})
    assert draft(early(budget=5), ToyPair(0), max_levels=3)[0].levels == 1


def test_a_policy_sees_each_text_as_if_it_were_alone():
    class Watches(KeepsMore):
        """Notes all that it is shown of each text, by its root."""

        seen: ClassVar[dict] = {}

        def score(self, layer):
            return layer.path_logprobs - 1

        def keep(self, layer):
            arrays = layer.logprobs, layer.path_logprobs, layer.scores, layer.parent_logprobs, layer.parent_scores
            shown = [layer.depth, layer.state, layer.tree.paths(), *(array.tolist() for array in arrays)]
            self.seen.setdefault(layer.tree.tokens[0], []).append(shown)
            return layer.possible & (layer.rank < 2)

        def stop(self, tree, frontier):
            self.seen[tree.tokens[0]].append(frontier.tolist())

    def shown(worlds, roots):
        Watches.seen = {}
        policy, states = Watches(budget=9), [f"text {root}" for root in roots]
        grow(policy, ToyRows(*worlds), roots, [2 + root % 2 for root in roots], states=states, vocab=6)
        return Watches.seen

    worlds, roots = [ToyPair(seed) for seed in range(4)], [10, 11, 12, 13]
    alone = [shown([world], [root]) for world, root in zip(worlds, roots, strict=True)]
    assert shown(worlds, roots) == alone[0] | alone[1] | alone[2] | alone[3]


def test_a_mask_may_be_as_small_as_broadcasting_allows():
    class Least(KeepsMore):
        def keep(self, layer):
            return layer.rank < 2

        def expand(self, layer):
            return np.array(True)

    tree, _ = draft(Least(budget=60), ToyPair(0), max_levels=3)
    assert [tree.depths.count(level) for level in range(4)] == [1, 2, 4, 8]


@pytest.mark.parametrize("name", ["size", "path_logprobs", "levels", "anything"])
def test_a_policy_cannot_set_what_the_tree_has(name):
    class Sets(Template):
        def stop(self, tree, frontier):
            setattr(tree, name, 0)

    with pytest.raises(AttributeError, match=name):
        toy_tree(
            TabularModel(4, 2, 0), Sets(tree="binary-2"), PointMass, SeededRandomness(0, 4, torch.device("cpu")), 3
        )
