"""The trees of requests that draft together are those that each drafts alone."""

import random

import pytest
import torch

from drafttree.core.randomness import SeededRandomness
from drafttree.core.tree import DraftTree, Proposal
from drafttree.engine.child_sampler import ChildSampler
from drafttree.engine.packed_growth import grow_packed
from drafttree.engine.tree_growth import grow
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import POLICIES, Chain, Eagle, Fixed, OptTree, Talon, Template, TreePolicy
from drafttree.policies.base import RoundOutcome, TextContext
from helpers.reads import Reads
from helpers.small_trees import SMALL
from helpers.toy import Table, ToyDraft

VOCAB, REQUESTS = 8, 5
CPU = torch.device("cpu")
NAMED = {name: POLICIES[name](**options) for name, options in SMALL.items()}
VARIANTS = {
    "talon that re-reads widths": Talon(width=3, robust=2, budget=14),
    "fixed without a threshold": Fixed(threshold=0, depth=5, breadth=2, budget=9),
    "eagle of the chosen": Eagle(depth=4, top_k=3, chosen_only=True, budget=9),
    "template cut": Template(tree="binary-3", budget=11),
    "opt-tree that stops early": OptTree(threshold=0.6, budget=9),
    "a root alone": Chain(depth=3, budget=1),
}
TOP_K = NAMED | VARIANTS
SAMPLED = {
    f"{name}, {proposal}": (form, proposal)
    for proposal in (Proposal.WITHOUT_REPLACEMENT, Proposal.WITH_REPLACEMENT, Proposal.TOP_K_PLUS_SAMPLE)
    for name, policy in TOP_K.items()
    if (form := policy.form_for(proposal, chain=False))
}


class Law:
    """A table some of whose tokens cannot follow, with a last column for "none of these"."""

    def __init__(self, seed: int) -> None:
        self.table, self.rng = Table(VOCAB, order=2, seed=seed, scale=(0.4, 1.5, 4.0)[seed % 3]), seed

    def __call__(self, prefix):
        rng = random.Random(f"{self.rng} {prefix[-3:]}")
        share = rng.choice([0.0, 0.0, 0.5, 0.9])
        return [-torch.inf if rng.random() < share else logit for logit in self.table(prefix)] + [0.5]


class Packed:
    """Requests that draft together, each by its own law; the logits of padding are random.

    One that `knows_nothing` gives equal logits, for which nothing is read.
    """

    def __init__(self, drafts: list[ToyDraft]) -> None:
        self.drafts, self.widths, self.knows_nothing = drafts, [], False

    def root(self):
        if self.knows_nothing:
            return torch.zeros(len(self.drafts), 1, VOCAB + 1)
        return torch.cat([draft.root() for draft in self.drafts])

    def expand(self, tokens, origins, widths):
        self.widths.append(tuple(widths))
        if self.knows_nothing:
            return torch.zeros(*tokens.shape, VOCAB + 1)
        logits = torch.randn(*tokens.shape, VOCAB + 1, dtype=torch.float64)
        for place, width in enumerate(widths):
            if width:
                own = slice(place, place + 1), slice(width)
                logits[own] = self.drafts[place].expand(tokens[own], origins[own])
        return logits


def drafts(seed: int) -> list[ToyDraft]:
    return [ToyDraft([Law(seed + text)], [[1, 2, text]], torch.float64) for text in range(REQUESTS)]


def learned(policy: TreePolicy, seed: int) -> tuple:
    """States of texts that are one to four rounds old."""
    rng, states = random.Random(seed), []
    for draft in drafts(seed + 100):
        state = policy.init_state(TextContext(TOY_COSTS))
        for _ in range(rng.randrange(4)):
            tree = grow(policy, draft, torch.tensor([[0]]), 4, states=(state,), vocab=VOCAB)
            path = [node for node in range(tree.size) if node == 0 or (node == 1 and rng.random() < 0.7)]
            state = policy.observe(state, RoundOutcome(tree, path))
        states.append(state)
    return tuple(states)


def limits(seed: int) -> list[int]:
    return random.Random(seed).choices([1, 2, 3, 5, 9], k=REQUESTS)


def sampler(proposal: Proposal | None, seed: int, texts) -> ChildSampler | None:
    rounds = [SeededRandomness(seed + text, VOCAB, CPU).at(3 + text) for text in texts]
    return ChildSampler(proposal, rounds) if proposal else None


ROOTS = torch.arange(REQUESTS)[:, None]


def together(policy, seed: int, proposal: Proposal | None = None, trim: bool | None = None) -> list[DraftTree]:
    choose, states = sampler(proposal, seed, range(REQUESTS)), learned(policy, seed)
    options = {"states": states, "sampler": choose, "vocab": VOCAB, "source": 3, "trim": trim}
    return grow_packed(policy, Packed(drafts(seed)), ROOTS, limits(seed), **options)


def alone(policy, seed: int, proposal: Proposal | None = None) -> list[DraftTree]:
    turns = zip(drafts(seed), limits(seed), learned(policy, seed), strict=True)
    return [
        grow(
            policy,
            draft,
            ROOTS[text : text + 1],
            depth,
            states=(state,),
            sampler=sampler(proposal, seed, [text]),
            vocab=VOCAB,
        )
        for text, (draft, depth, state) in enumerate(turns)
    ]


def assert_same(one: DraftTree, other: DraftTree) -> None:
    assert (one.levels, one.widths, one.proposal) == (other.levels, other.widths, other.proposal)
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.parents, other.parents)
    torch.testing.assert_close(one.path_logprobs, other.path_logprobs, atol=1e-9, rtol=0, check_dtype=False)
    torch.testing.assert_close(one.scores, other.scores, atol=1e-9, rtol=0, check_dtype=False)
    assert one.is_chain >= other.is_chain
    torch.testing.assert_close(one.ancestors, other.ancestors)


@pytest.mark.parametrize("name", TOP_K)
def test_requests_that_draft_together_draft_the_trees_of_each_alone(name):
    for seed in range(12):
        expected = alone(TOP_K[name], seed)
        for trim in (True, False):
            for one, other in zip(together(TOP_K[name], seed, trim=trim), expected, strict=True):
                assert_same(one, other)
                assert one.source == 3


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_trees_and_their_distributions_are_those_of_each_alone(name):
    for seed in range(8):
        policy, proposal = SAMPLED[name]
        expected = alone(policy, seed, proposal)
        for trim in (True, False):
            for one, other in zip(together(policy, seed, proposal, trim), expected, strict=True):
                assert_same(one, other)
                torch.testing.assert_close(one.draft_rows, other.draft_rows)
                torch.testing.assert_close(one.draft_probs, other.draft_probs)


def test_trees_of_many_shapes_were_compared():
    trees = [tree for name in TOP_K for seed in range(12) for tree in together(TOP_K[name], seed)]
    assert len({tree.size for tree in trees}) > 8
    assert {tree.levels for tree in trees} >= {0, 1, 2, 3, 4, 5}
    assert len({tree.widths for tree in trees}) > 20


@pytest.mark.parametrize("name", sorted(TOP_K.keys() - {"auto"}))
def test_the_device_is_read_once_a_level_and_once_in_the_end(name, monkeypatch):
    packed, states = Packed(drafts(0)), learned(TOP_K[name], 0)
    with monkeypatch.context() as inner, Reads(inner) as reads:
        packed.knows_nothing = True
        grow_packed(TOP_K[name], packed, ROOTS, limits(0), states=states, vocab=VOCAB, trim=False)
    assert reads.count <= len(packed.widths) + 2


def test_a_request_is_not_asked_for_beyond_its_limit():
    packed = Packed(drafts(0))
    states = (None,) * REQUESTS
    grow_packed(Chain(depth=9), packed, torch.zeros(REQUESTS, 1).long(), [1, 2, 3, 3, 1], states=states, vocab=VOCAB)
    assert [tuple(map(bool, widths)) for widths in packed.widths] == [
        (False, True, True, True, False),
        (False, False, True, True, False),
    ]


class OnlyTheBest:
    """Expands the best node of every frontier, wherever it stands."""

    def __init__(self) -> None:
        self.depths = []

    def expand(self, tree, frontier, depth):
        self.depths.append(depth)
        assert tree.levels[-1][0].shape[1] >= frontier.nodes.shape[1]
        paths = frontier.path_logprobs
        return paths == paths.amax(1, keepdim=True)


def test_a_gate_narrows_what_the_policy_expands():
    policy, gate, packed = Fixed(depth=4, breadth=3, threshold=0.0, budget=60), OnlyTheBest(), Packed(drafts(2))
    states, roots = (None,) * REQUESTS, torch.zeros(REQUESTS, 1).long()
    trees = grow_packed(policy, packed, roots, [9] * REQUESTS, states=states, vocab=VOCAB, gate=gate)
    assert gate.depths == [1, 2, 3]
    assert packed.widths
    assert max(map(max, packed.widths)) == 1
    for tree in trees:
        branches, logprobs = tree.branches[0], tree.path_logprobs[0]
        for node, children in enumerate(branches.children):
            level = (tree.depths[0] == tree.depths[0, node]).nonzero()[:, 0]
            assert not children or logprobs[node] == logprobs[level].max()
    assert max(tree.levels for tree in trees) == 4


def test_a_gate_that_leaves_out_nothing_changes_nothing():
    class Open:
        def expand(self, tree, frontier, depth):
            return None if depth % 2 else torch.ones_like(frontier.nodes, dtype=torch.bool)

    policy = Talon(width=3, budget=14)
    options = {"states": (None,) * REQUESTS, "vocab": VOCAB}
    roots = torch.zeros(REQUESTS, 1).long()
    gated, free = (
        grow_packed(policy, Packed(drafts(1)), roots, [9] * REQUESTS, gate=gate, **options) for gate in (Open(), None)
    )
    for one, other in zip(gated, free, strict=True):
        assert_same(one, other)
