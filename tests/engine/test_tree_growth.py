"""Every policy against the papers' pseudocode in plain Python, over draft distributions drawn at random."""

import hashlib
import json
import math
import random
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.core.errors import ConfigError
from drafttree.core.randomness import SeededRandomness
from drafttree.core.tree import DraftTree, Proposal
from drafttree.engine.child_sampler import ChildSampler
from drafttree.engine.tree_growth import grow
from drafttree.evaluation.exactness import toy_tree
from drafttree.evaluation.toy_models import TabularModel
from drafttree.loading.load import make_policy
from drafttree.policies import POLICIES, Auto, Chain, DynaTree, DySpec, Eagle, Fixed, OptTree, Talon, Template
from drafttree.policies.base import TreePolicy
from drafttree.policies.template import SHIPPED
from drafttree.verifiers import RRS, GreedyMultiDraft, PointMass, RRSw
from helpers import papers
from helpers.costs import new_states
from helpers.reads import Reads
from helpers.toy import ToyDraft

ROOT = 0
FAR = 1000

few = settings(max_examples=40, deadline=None)
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


def draft(policy, *worlds: ToyPair, max_levels: int = FAR) -> tuple[DraftTree, ToyDraft]:
    """Grow a tree per world in one batch; the tree and the drafter that was asked."""
    drafted = ToyDraft(worlds, [[ROOT]] * len(worlds), torch.float64)
    root = torch.full((len(worlds), 1), ROOT)
    states = new_states(policy, len(worlds))
    tree = grow(policy, drafted, root, max_levels, states=states, vocab=worlds[0].vocab)
    return tree, drafted


def paths_of(tree: DraftTree, text: int = 0) -> dict[tuple[int, ...], float]:
    """Every path of tokens with its log-probability."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(1, tree.size):
        if tree.valid[text, node]:
            paths[node] = (*paths[int(tree.parents[text, node])], int(tree.tokens[text, node]))
    assert len(set(paths.values())) == len(paths), "a node was drafted twice"
    return {path: float(tree.path_logprobs[text, node]) for node, path in paths.items()}


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


@settings(max_examples=120, deadline=None)
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

    drafted = ToyDraft([falling], [[ROOT]], torch.float64)
    tree = grow(policy, drafted, torch.tensor([[ROOT]]), FAR)
    return set(paths_of(tree)) - {()}


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


@every_policy
@settings(max_examples=25, deadline=None)
@given(worlds, worlds)
def test_a_batch_of_two_grows_the_trees_of_two_batches_of_one(name, one, other):
    other.vocab = one.vocab
    together = draft(small(name), one, other)[0]
    assert paths_of(together, 0) == pytest.approx(paths_of(draft(small(name), one)[0]), abs=1e-12)
    assert paths_of(together, 1) == pytest.approx(paths_of(draft(small(name), other)[0]), abs=1e-12)


@every_policy
@settings(max_examples=25, deadline=None)
@given(worlds, st.integers(1, 9), st.integers(1, 6))
def test_budget_levels_and_passes_hold_for_every_policy(name, world, budget, max_levels):
    policy = POLICIES[name](**SMALL[name] | {"budget": budget})
    tree, drafted = draft(policy, world, max_levels=max_levels)
    assert tree.size <= budget
    assert tree.levels <= drafted.passes <= min(tree.levels + bool(world.beyond), max_levels)
    assert int(tree.depths.max()) <= tree.levels
    assert all(up < node for node, up in enumerate(tree.parents[0].tolist()))
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
    drafted = ToyDraft([lambda _: unsure, lambda _: sure], [[ROOT]] * 2, torch.float64)
    policy = OptTree(budget=4, threshold=0.4, depth=3)
    tree = grow(policy, drafted, torch.full((2, 1), ROOT), FAR)
    assert int(tree.depths[0][tree.valid[0]].max()) == 2
    assert int(tree.depths[1][tree.valid[1]].max()) == 3


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
    drafted = ToyDraft([certain], [[ROOT]], dtype)
    tree = grow(small(name), drafted, torch.tensor([[ROOT]]), FAR, states=new_states(small(name)))
    assert tree.parents[0].tolist().count(-1) == 1
    assert all(up < node for node, up in enumerate(tree.parents[0].tolist()))
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
    drafted = ToyDraft([equal], [[ROOT]], torch.float64)
    tree = grow(policy, drafted, torch.tensor([[ROOT]]), FAR)
    assert tree.depths[0].bincount().tolist() == sizes


def test_talon_keeps_every_tie_of_the_best_at_margin_one():
    def two_best(prefix):
        return [0.0, 0.0, -1.0, -1.0]

    drafted = ToyDraft([two_best], [[ROOT]], torch.float32)
    tree = grow(Talon(width=1, margin=1.0, budget=8), drafted, torch.tensor([[ROOT]]), FAR)
    assert tree.depths[0].bincount().tolist() == [1, 1, 2, 4]


def test_dynatree_goes_deep_only_strictly_above_the_threshold():
    def coin(prefix):
        return [0.0, 0.0, -math.inf]

    def levels(**options):
        drafted = ToyDraft([coin], [[ROOT]], torch.float32)
        policy = DynaTree(base_depth=1, max_depth=5, mid_breadth=2, **options)
        return grow(policy, drafted, torch.tensor([[ROOT]]), FAR).levels

    assert levels(deep_above=0.5) == 1
    assert levels(deep_above=0.49) == 2


class Uncounted(ToyDraft):
    """A drafter whose own reads do not count."""

    reads: Reads

    def root(self):
        return self._paused(super().root)

    def expand(self, tokens, origins):
        return self._paused(super().expand, tokens, origins)

    def _paused(self, function, *args):
        self.reads.paused = True
        logits = function(*args)
        self.reads.paused = False
        return logits


FIXED_SHAPE = [Chain(), Template(), Template(tree="binary-4"), Eagle(depth=4, top_k=3), Fixed(threshold=0)]
FIXED_SHAPE += [Fixed(depth=5, breadth=2, threshold=0, budget=9), Eagle(budget=8), Chain(depth=6, budget=4)]
FIXED_SHAPE += [Eagle(depth=4, top_k=3, chosen_only=True, budget=9)]
FIXED_SHAPE += [Fixed(depth=5, breadth=3, threshold=0, first_come=True, budget=20)]
ADAPTIVE = [Fixed(), DynaTree(), DynaTree(budget=6), Talon(width=3, budget=14), OptTree(budget=12), DySpec(budget=12)]
ADAPTIVE += [Talon(width=3, robust=robust, budget=14) for robust in (0, 2)]
ADAPTIVE += [Fixed(breadth=3, first_come=True, budget=16), DynaTree(first_come=True, budget=9)]


def untrimmed(policy, worlds: list[ToyPair], patch, sampler=None) -> tuple[DraftTree, Uncounted, int]:
    """The trees as on a far device, the drafter, and how often the device was asked."""
    drafted = Uncounted(worlds, [[ROOT]] * len(worlds), torch.float64)
    root = torch.full((len(worlds), 1), ROOT)
    with patch.context() as inner, Reads(inner) as reads:
        drafted.reads = reads
        states = new_states(policy, len(worlds))
        tree = grow(policy, drafted, root, 5, states=states, sampler=sampler, vocab=worlds[0].vocab, trim=False)
        return tree, drafted, reads.count


def test_reads_of_every_kind_are_counted(monkeypatch):
    one = torch.ones(1)
    with monkeypatch.context() as inner, Reads(inner) as reads:
        for asked in (one.tolist, one.item, one.nonzero, one.numpy):
            asked()
        assert int(one)
        assert float(one)
        assert bool(one)
        assert reads.count == 7


@pytest.mark.parametrize("policy", FIXED_SHAPE, ids=repr)
def test_a_tree_of_fixed_shape_asks_the_device_for_nothing(policy, monkeypatch):
    for seed in range(10):
        far, _, reads = untrimmed(policy, [ToyPair(seed)], monkeypatch)
        near, _ = draft(policy, ToyPair(seed), max_levels=5)
        assert reads == 0
        assert paths_of(far) == paths_of(near)
        assert far.size <= policy.budget


@pytest.mark.parametrize("policy", ADAPTIVE, ids=repr)
def test_any_other_tree_asks_the_device_once_a_level(policy, monkeypatch):
    for seed in range(10):
        far, drafted, reads = untrimmed(policy, [ToyPair(seed)], monkeypatch)
        near, nearer = draft(policy, ToyPair(seed), max_levels=5)
        assert 0 < reads <= drafted.passes
        assert paths_of(far) == paths_of(near)
        assert drafted.passes == nearer.passes


def test_auto_asks_the_device_five_times_a_level_and_once_for_the_size(monkeypatch):
    """It weighs all nodes on the host."""
    for seed in range(10):
        far, drafted, reads = untrimmed(Auto(), [ToyPair(seed)], monkeypatch)
        near, nearer = draft(Auto(), ToyPair(seed), max_levels=5)
        assert 0 < reads <= 5 * drafted.passes + 1
        assert paths_of(far) == paths_of(near)
        assert drafted.passes == nearer.passes


@pytest.mark.parametrize("policy", [Auto(), *FIXED_SHAPE, *ADAPTIVE], ids=repr)
def test_a_batch_on_a_far_device_grows_the_same_trees(policy, monkeypatch):
    worlds = [ToyPair(seed) for seed in range(3)]
    far, _, _ = untrimmed(policy, worlds, monkeypatch)
    near, _ = draft(policy, *worlds, max_levels=5)
    assert [paths_of(far, text) for text in range(3)] == [paths_of(near, text) for text in range(3)]


WIDE = [Template(tree="medusa-63"), Fixed(threshold=0, breadth=9, depth=2), Talon(width=9, budget=20), Talon()]


@pytest.mark.parametrize("policy", [Chain(), Template(), Fixed(threshold=0), DynaTree(), Fixed(), *WIDE], ids=repr)
def test_sampled_trees_of_a_far_device_are_those_of_a_near_one(policy, monkeypatch):
    for seed in range(10):
        rounds = [SeededRandomness(seed, 12, torch.device("cpu")).at(7) for _ in range(2)]
        samplers = [ChildSampler(Proposal.WITHOUT_REPLACEMENT, [each]) for each in rounds]
        far, drafted, reads = untrimmed(policy, [ToyPair(seed, 12)], monkeypatch, samplers[0])
        near = draft_sampled(policy, ToyPair(seed, 12), samplers[1])
        assert reads <= (0 if policy.fixed_shape else drafted.passes)
        assert paths_of(far) == paths_of(near)


def draft_sampled(policy, world: ToyPair, sampler: ChildSampler) -> DraftTree:
    drafted = ToyDraft([world], [[ROOT]], torch.float64)
    return grow(policy, drafted, torch.tensor([[ROOT]]), 5, sampler=sampler, vocab=world.vocab)


RECORDED = json.loads(Path(__file__).with_name("recorded_trees.json").read_text())
"""Digests of 200 trees each, by policy and by form, grown before growth had fixed shapes (commit d70dd27)."""
FORMS = {verifier.proposal.value: verifier for verifier in (PointMass, RRSw, RRS, GreedyMultiDraft)}


def digest(spec: str, form: str) -> str:
    state = hashlib.sha256()
    for seed in range(200):
        table = TabularModel(6, 3, seed, (0.5, 1.5, 3.0, 5.0)[seed % 4])
        randomness = SeededRandomness(seed, 6, torch.device("cpu"))
        tree = toy_tree(table, make_policy(spec), FORMS[form], randomness, 3 + seed % 4)
        paths = [path for path, valid in zip(tree.paths(), tree.valid[0].tolist(), strict=True) if valid]
        state.update(repr((tree.levels, paths)).encode())
    return state.hexdigest()[:16]


@pytest.mark.parametrize("spec", RECORDED)
def test_trees_are_those_that_were_recorded(spec):
    assert {form: digest(spec, form) for form in RECORDED[spec]} == RECORDED[spec]


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


def test_a_policy_that_keeps_more_than_its_budget_grows_the_same_tree_everywhere(monkeypatch):
    for seed in range(10):
        far, _, _ = untrimmed(KeepsMore(budget=5), [ToyPair(seed)], monkeypatch)
        assert paths_of(far) == paths_of(draft(KeepsMore(budget=5), ToyPair(seed), max_levels=5)[0])


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (None, "NoneType"),
        (torch.ones(1, 1, 4), r"torch.float32 \[1, 1, 4\]"),
        (torch.ones(4).bool(), r"torch.bool \[4\]"),
    ],
)
def test_a_mask_that_is_none_is_named(kept, found):
    class Wrong(KeepsMore):
        def keep(self, layer):
            return kept

    with pytest.raises(ConfigError, match=rf"Wrong.keep returns {found}; it must return a bool tensor \[1, 1, 4\]"):
        draft(Wrong(), ToyPair(0))


@pytest.mark.parametrize("hook", ["expand", "label"])
@pytest.mark.parametrize(
    ("given", "found"),
    [
        (torch.ones(1, 4), r"torch.float32 \[1, 4\]"),
        (torch.ones(1, 1, 4), r"torch.float32 \[1, 1, 4\]"),
        (torch.ones(4).bool(), r"torch.bool \[4\]"),
        (torch.ones(1, 1, 2).long(), r"torch.int64 \[1, 1, 2\]"),
        ([True], "list"),
    ],
)
def test_what_another_hook_returns_is_named_if_it_does_not_fit(hook, given, found):
    wrong = type("Wrong", (KeepsMore,), {hook: lambda self, layer: given})
    dtype = {"expand": "bool", "label": "int64"}[hook]
    with pytest.raises(
        ConfigError, match=rf"Wrong.{hook} returns {found}; it must return a {dtype} tensor \[1, 1, 4\]"
    ):
        draft(wrong(budget=5), ToyPair(0), max_levels=2)


class Meddles(Template):
    """A user's policy that writes into all it is given to look at."""

    def stop(self, tree, frontier):
        for shown in (tree.path_logprobs, tree.scores, frontier):
            shown.fill_(-torch.inf)

    def expand(self, layer):
        wanted = super().expand(layer)
        layer.logprobs.fill_(-torch.inf)
        layer.path_logprobs.fill_(-torch.inf)
        return wanted


@pytest.mark.parametrize("form", FORMS)
def test_a_policy_that_writes_into_the_tree_changes_nothing(form):
    table = TabularModel(6, 3, 0)
    for seed in range(5):
        policies = (Template(tree="eagle-sparse"), Meddles(tree="eagle-sparse"))
        same, meddled = (
            toy_tree(table, policy, FORMS[form], SeededRandomness(seed, 6, torch.device("cpu")), 3)
            for policy in policies
        )
        assert same.paths() == meddled.paths()
        assert torch.equal(same.path_logprobs, meddled.path_logprobs)
        assert same.valid.all()


@pytest.mark.parametrize("name", ["size", "path_logprobs", "last_level", "anything"])
def test_a_policy_cannot_set_what_the_tree_has(name):
    class Sets(Template):
        def stop(self, tree, frontier):
            setattr(tree, name, 0)

    with pytest.raises(AttributeError, match=name):
        toy_tree(
            TabularModel(4, 2, 0), Sets(tree="binary-2"), PointMass, SeededRandomness(0, 4, torch.device("cpu")), 3
        )
