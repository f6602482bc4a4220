"""Medusa's typical acceptance against a direct computation, and that nobody gets it unasked."""

import itertools
import math

import pytest
import torch

from drafttree import Decoder, DraftTree, Sampling
from drafttree.core import Proposal
from drafttree.policies import Template
from drafttree.verifiers import VERIFIERS, LossyTypical
from testing.toy import Table, ToyDrafter, ToyModel
from testing.toy_pairs import Told, drawn_tree, judged

TREE = DraftTree(
    tokens=[0, 0, 1, 0, 1, 2, 0],
    parents=[-1, 0, 0, 1, 1, 2, 3],
    path_logprobs=[0.0] * 7,
    scores=[0.0] * 7,
    levels=3,
)


def typical(rows: list[list[float]]) -> tuple[list[int], int]:
    """Every path from the root whose nodes are all accepted; the longest, then the likeliest."""
    tokens, parents = TREE.tokens, TREE.parents
    found = [([0], 0.0)]
    for node in range(1, 7):
        path = [node]
        while path[0]:
            path.insert(0, parents[path[0]])
        chances = [rows[before][tokens[after]] for before, after in itertools.pairwise(path)]
        bars = [bar(rows[before]) for before in path[:-1]]
        if all(chance > limit for chance, limit in zip(chances, bars, strict=True)):
            found.append((path, sum(map(math.log, chances))))
    best = max(found, key=lambda entry: (len(entry[0]), entry[1]))[0]
    last = rows[best[-1]]
    return best, last.index(max(last))


def bar(row: list[float]) -> float:
    entropy = -sum(p * math.log(p + 1e-5) for p in row)
    return min(0.09, 0.3 * math.exp(-entropy))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(12))
def test_it_is_the_longest_typical_path_then_the_likeliest(seed, temperature):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(7, 4, generator=generator, dtype=torch.float64)
    rows = (logits / temperature).softmax(-1).tolist()
    assert LossyTypical(Sampling(temperature)).verify(TREE, logits, Told()) == typical(rows)


def test_nothing_typical_leaves_the_root_and_its_best_token():
    tree = drawn_tree([0], [0], [1.0, 0.0], Proposal.TOP_K)
    verdict, randomness = judged(LossyTypical, tree, [0.01, 0.99])
    assert verdict == ([0], 1)
    assert not randomness.drawn


def test_it_runs_when_named_and_only_then():
    target, drafter = ToyModel(Table()), ToyDrafter(Table())
    policy = Template(tree="medusa-63")
    named = Decoder(target, drafter, policy, VERIFIERS["lossy-typical"]).new_request([1], temperature=0.7)
    assert isinstance(named.task.verifier, LossyTypical)
    assert not isinstance(
        Decoder(target, drafter, policy).new_request([1], temperature=0.7).task.verifier, LossyTypical
    )


def test_a_chain_deeper_than_pythons_stack_is_judged():
    deep = 1200
    tree = drawn_tree([0] * deep, list(range(deep)), [1.0, 0.0], Proposal.TOP_K)
    verdict, _ = judged(LossyTypical, tree, [0.9, 0.1])
    assert verdict == (list(range(deep + 1)), 0)
