"""Verifiers that accept too often, by as much as they say."""

import pytest
import torch

import drafttree
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Proposal
from drafttree.evaluation.live_certificate import certify_live
from drafttree.evaluation.scripted_random import outcomes
from drafttree.verifiers import RRSw
from drafttree_lab.support.biased_verifiers import RRSw2, RRSw5, RRSw10, Traversal2, Traversal5, Traversal10


@pytest.mark.parametrize("verifier", [RRSw2, RRSw5, RRSw10, Traversal2, Traversal5, Traversal10])
def test_a_drafted_token_is_accepted_more_often_by_the_bias(verifier):
    target, draft = torch.tensor([0.2, 0.5, 0.3]).double(), torch.tensor([0.8, 0.1, 0.1]).double()
    tree = DraftTree((0, 0), (-1, 0), (0.0, 0.0), (0.0, 0.0), 1, Proposal.WITHOUT_REPLACEMENT, {0: draft}, (1,), 0)
    logits, accepted = torch.stack([target.log(), target.log()]), {}
    for kind in (RRSw, verifier):
        verdicts = outcomes(lambda numbers, kind=kind: kind(Sampling(1.0)).verify(tree, logits.clone(), numbers))
        accepted[kind] = sum(weight for weight, verdict in verdicts if len(verdict.path) > 1)
    assert accepted[RRSw] == pytest.approx(0.25)
    assert accepted[verifier] == pytest.approx(0.25 * (1 + verifier.bias))


@pytest.mark.slow
@pytest.mark.parametrize("verifier", [RRSw10, Traversal10])
def test_a_tenth_more_acceptance_is_refuted(verifier):
    pair = drafttree.load(dtype="float32", policy="dynatree", verifier=verifier)
    certificate = certify_live(pair, ["The old man looked at the sea", "In the year of our Lord"], tokens=100_000)
    assert certificate.refuted
    assert (certificate.written.evidence.smallest_bias or 1) < 0.15
