"""Trees in a batch keep the target's law: drawn ones are limited before the draws, and selected ones alone are cut."""

from dataclasses import replace

import pytest
import torch

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.errors import ConfigError
from drafttree.core.tree import DraftTree
from drafttree.engine.batching.batch_costs import BatchCosts
from drafttree.engine.batching.batch_drafting import BatchDrafting
from drafttree.engine.batching.experience import Experience
from drafttree.engine.batching.shared_budget import cut
from drafttree.engine.request import Request
from drafttree.evaluation import exactness
from drafttree.evaluation.exactness import RoundLaw, ToyDecoder, law
from drafttree.policies import Chain, Talon, Template, TreePolicy
from drafttree.verifiers import RRS, Block, GreedyMultiDraft, KSeq, PointMass, RRSw, Traversal, Verifier
from helpers.toy_pairs import EXACT, toy_pair

RAGGED = Template(paths=((0,), (1,), (0, 0)))
DRAWING = [RRSw, RRS, Traversal, KSeq, GreedyMultiDraft, Block]
COSTS = CostCurve(
    target=Costs((1, 2, 4, 8), (1.0, 1.1, 1.3, 1.9)),
    draft=(DraftCosts(first=0.05, later=Costs((1, 4), (0.3, 0.3))),),
    overhead=0.1,
    plain_overhead=0.05,
)
"""Drafting is so dear that a level pays only where it was accepted before."""


class BatchedDecoder(ToyDecoder):
    """Drafts its trees as an engine does, which learns from the earlier rounds of the same text.

    Attributes:
        depths: the levels of all trees.
    """

    depths: set[int]

    def request(self, *arguments) -> Request:
        costs = BatchCosts(COSTS, frozen=True)
        self._drafting = BatchDrafting(self, Experience(costs))
        return super().request(*arguments)

    def propose(self, request: Request) -> DraftTree:
        drafts = self._drafting.draft([request], rows=1, rate=1.0)
        if drafts.failure:
            raise drafts.failure
        (tree,) = drafts.trees
        type(self).depths.add(tree.levels)
        return tree

    def settle(self, request, tree, output, started):
        committed, turn = super().settle(request, tree, output, started)
        if not request.finish_reason:
            self._drafting.observe(request, tree, turn)
        return committed, turn


class CuttingDecoder(ToyDecoder):
    """Drops the drawn nodes that are least likely to be accepted, as may be done with selected ones."""

    def propose(self, request: Request) -> DraftTree:
        tree = super().propose(request)
        return replace(tree, scores=tree.path_logprobs).best(max(tree.size - 1, 2))


def law_of(decoder: type[ToyDecoder], monkeypatch, policy: TreePolicy, verifier: type[Verifier], **options) -> RoundLaw:
    """The exact law of a kind of decoder."""
    monkeypatch.setattr(exactness, "ToyDecoder", decoder)
    tables = toy_pair(3)
    return law(tables.target, tables.draft, policy, verifier, **options)


@pytest.mark.parametrize("verifier", DRAWING)
def test_limits_of_levels_by_earlier_rounds_keep_the_law(verifier, monkeypatch):
    """Two rounds of a text; the second is limited by what was accepted in the first."""
    decoder = type("Recorded", (BatchedDecoder,), {"depths": set()})
    found = law_of(decoder, monkeypatch, Chain(depth=2), verifier, levels=2, rounds=2)
    assert found.total_variation < EXACT
    assert decoder.depths == {1, 2}


@pytest.mark.parametrize("verifier", [RRSw, Traversal, GreedyMultiDraft])
@pytest.mark.parametrize(
    "policy", [Template(paths=((0,), (1,), (0, 0))), Talon(width=2, margin=0.5, budget=4)], ids=str
)
def test_limited_trees_that_branch_keep_the_law(policy, verifier, monkeypatch):
    """The second round of a text whose first one was drawn."""
    decoder = type("Recorded", (BatchedDecoder,), {"depths": set()})
    found = law_of(decoder, monkeypatch, policy, verifier, levels=2, rounds=1, earlier=1)
    assert found.total_variation < EXACT
    assert found.expected_accepted > 0


@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal, KSeq])
def test_cutting_drawn_nodes_for_what_they_are_would_bias_the_text(verifier, monkeypatch):
    """Why the engine refuses it; and these tests can fail."""
    assert law_of(ToyDecoder, monkeypatch, RAGGED, verifier, levels=2).total_variation < EXACT
    assert law_of(CuttingDecoder, monkeypatch, RAGGED, verifier, levels=2).total_variation > 1e-3


def test_cutting_selected_nodes_keeps_the_law_of_a_verifier_that_draws(monkeypatch):
    found = law_of(CuttingDecoder, monkeypatch, RAGGED, PointMass, levels=2)
    assert found.total_variation < EXACT
    assert found.expected_accepted > 0


@pytest.mark.parametrize("verifier", DRAWING)
def test_the_engine_refuses_to_cut_drawn_trees(verifier):
    tree = DraftTree.rooted(torch.zeros(1, 1, dtype=torch.long), verifier.proposal)
    with pytest.raises(ConfigError, match="cannot be cut; limit their levels before they are drawn"):
        cut([tree], [[0.0]], 1)
