"""How often a verifier asks the device: for the probabilities it needs, all at once, and for the bonus token."""

import pytest
import torch

from drafttree import Sampling
from drafttree.core import SeededRandomness
from drafttree.engine import grow
from drafttree.engine.drafting.tree_drafter import AdjustedDraft, LogitsAdjustment
from drafttree.policies import Chain, Template
from drafttree.verifiers import (
    RRS,
    Block,
    Coupled,
    Greedy,
    GreedyMultiDraft,
    PointMass,
    RRSw,
    Traversal,
    Verifier,
)
from helpers.reads import Reads
from testing.toy import Table, ToyDraft

VOCAB = 8
MOST = {Greedy: 1, Coupled: 1, RRSw: 5, RRS: 5, PointMass: 5, Traversal: 5, Block: 5}
"""The tokens that the target chooses; or the probabilities, a check of the row that is drawn from, the draw,
and two streams of uniform numbers, which are made on the host."""


def judged(verifier: type[Verifier], seed: int, monkeypatch) -> tuple[int, int]:
    """How often the device was asked, and how many drafted nodes the tree had."""
    sampling = Sampling(0.0 if verifier is Greedy else 1.0, seed=seed)
    cpu = torch.device("cpu")
    judge, randomness = verifier(sampling), SeededRandomness(seed, VOCAB, cpu).at(3)
    policy = Chain(depth=5) if judge.chains_only else Template(tree="binary-3")
    session = ToyDraft([Table(VOCAB, seed=seed)], [[1]], torch.float32)
    drafted = AdjustedDraft([session], [LogitsAdjustment(judge, randomness)], cpu)
    (tree,) = grow(policy, drafted, [1], [9], states=[None], proposal=judge.proposal, randomness=[randomness])
    logits = torch.randn(tree.size, VOCAB, generator=torch.Generator().manual_seed(seed))
    with monkeypatch.context() as patch, Reads(patch) as reads:
        judge.verify(tree, logits, randomness)
        return reads.count, tree.size - 1


@pytest.mark.few(3)
@pytest.mark.parametrize("verifier", MOST)
def test_a_verifier_reads_all_probabilities_at_once(verifier, monkeypatch):
    counts, nodes = zip(*(judged(verifier, seed, monkeypatch) for seed in range(30)), strict=True)
    assert max(counts) <= MOST[verifier]
    assert max(nodes) > 4


def test_greedy_multi_draft_draws_once_more_for_every_node_it_rejects(monkeypatch):
    assert max(judged(GreedyMultiDraft, seed, monkeypatch)[0] for seed in range(30)) <= MOST[RRSw] + 2 * 3
