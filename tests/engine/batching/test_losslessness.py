"""Texts of a batch keep the target's law, whatever is learned from them and whichever seeds they have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from drafttree import Decoder
from drafttree.core.tree import Proposal
from drafttree.engine import Request
from drafttree.engine.drafting import controller
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.engine.drafting.prices import Prices
from drafttree.engine.round_loop import Drafts
from drafttree.evaluation import text_law as text_laws
from drafttree.evaluation.pair_trials import COSTLY_DRAFTS
from drafttree.evaluation.toy_decoder import ToyDecoder
from drafttree.evaluation.toy_models import TabularDrafter, TabularTarget
from drafttree.exactness import TextLaw, Texts, law, text_law
from drafttree.policies import Chain, Talon, Template, TreePolicy
from drafttree.verifiers import RRS, Block, GreedyMultiDraft, KSeq, PointMass, RRSw, Traversal, Verifier
from helpers.statistics import p_value
from helpers.trees import tree_of
from testing.toy_pairs import EXACT, toy_pair

RAGGED = Template(paths=((0,), (1,), (0, 0)))
SIBLINGS = Talon(width=2, margin=0.5, budget=3)
DRAWING = [RRSw, RRS, Traversal, KSeq, GreedyMultiDraft, Block]
SAME, DIFFERENT = ((0,), (0,)), ((0,), (0, 1))


def batch_law(
    policy: TreePolicy, verifier: type[Verifier], prompts=SAME, *, seeds=(0, 0), at_once: int, length: int = 3
) -> TextLaw:
    """The exact law of two texts of a batch; a level is drafted only where levels were accepted before."""
    tables = toy_pair(1, 2)
    texts = Texts(prompts, seeds, length, eos=(1,), batch=at_once, levels=2, costs=COSTLY_DRAFTS)
    return text_law(tables.target, tables.draft, policy, verifier, texts)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    ("verifier", "prompts"), [*[(verifier, SAME) for verifier in (*DRAWING, PointMass)], (RRSw, DIFFERENT)]
)
@pytest.mark.parametrize(("at_once", "length"), [(1, 3), (2, 3), pytest.param(2, 4, marks=pytest.mark.slow)])
def test_equal_seeds_keep_the_law(verifier, prompts, at_once, length):
    found = batch_law(Chain(depth=2), verifier, prompts, at_once=at_once, length=length)
    assert found.total_variation < EXACT
    assert found.expected_accepted > 0


@pytest.mark.few(1)
@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)], ids=["equal seeds", "different seeds"])
@pytest.mark.parametrize("verifier", [RRSw, Traversal, GreedyMultiDraft, PointMass])
def test_trees_that_branch_keep_the_law(verifier, seeds):
    found = batch_law(SIBLINGS, verifier, seeds=seeds, at_once=1)
    assert found.total_variation < EXACT
    assert found.reach.siblings == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("verifier", [RRSw, Traversal])
def test_limits_of_levels_do_change_with_what_was_accepted(verifier, at_once, monkeypatch):
    found, own = set(), Controller.limits
    monkeypatch.setattr(Controller, "limits", lambda *args: (found.add((limits := own(*args)).levels), limits)[1])
    assert batch_law(Chain(depth=2), verifier, at_once=at_once, length=4).total_variation < EXACT
    assert found == {1, 2}


@pytest.mark.few(1)
@pytest.mark.parametrize("verifier", [RRSw, Traversal, Block, PointMass])
def test_drafting_that_pauses_for_other_texts_keeps_the_law(verifier, monkeypatch):
    """Any loss pauses here, where one of two rounds does else."""
    decisions, own = set(), Controller.reason
    monkeypatch.setattr(controller, "LOST", 0.0)
    monkeypatch.setattr(Controller, "reason", lambda *args: (decisions.add((found := own(*args)) is None), found)[1])
    found = batch_law(Chain(depth=2), verifier, at_once=1, length=4)
    assert found.total_variation < EXACT
    assert decisions == {True, False}


@pytest.mark.few(1)
@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal, KSeq])
def test_numbers_that_texts_share_would_bias_them(verifier, monkeypatch):
    """Why each text has its own; and these tests can fail. Texts of four tokens are long enough for a second level."""
    monkeypatch.setattr(LearnedState, "unshared_seed", lambda _, seed: seed)
    found = batch_law(Chain(depth=2), verifier, at_once=1, length=4)
    alone = batch_law(Chain(depth=2), verifier, seeds=(0, 1), at_once=1, length=4)
    assert alone.total_variation < EXACT
    later = {text: sum(weight for texts, weight in found.texts.items() if texts[1] == text) for _, text in alone.texts}
    wanted = {text: sum(weight for texts, weight in alone.texts.items() if texts[1] == text) for text in later}
    assert sum(abs(later[text] - wanted[text]) for text in later) / 2 > 1e-2


class CuttingDecoder(ToyDecoder):
    """Drops the drawn nodes that are least likely to be accepted, as may be done with selected ones."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        draft = self.loop.trees.draft

        def cut(requests: Sequence[Request], prefill_rows: int = 0) -> Drafts:
            drafts = draft(requests, prefill_rows)
            trees = [replace(tree, scores=tree.path_logprobs) for tree in drafts.trees]
            return replace(drafts, trees=[tree.best(max(tree.size - 1, 2)) for tree in trees])

        self.loop.trees.draft = cut


def law_of(decoder: type[ToyDecoder], monkeypatch, policy: TreePolicy, verifier: type[Verifier], **options) -> TextLaw:
    """The exact law of a kind of decoder."""
    monkeypatch.setattr(text_laws, "ToyDecoder", decoder)
    tables = toy_pair(3)
    return law(tables.target, tables.draft, policy, verifier, **options)


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
def test_the_controller_cuts_no_drawn_tree(verifier):
    """However dear its nodes are, and however small the budget."""
    tree = replace(tree_of([0, 0, 1], [0.1, 0.1, 0.1], widths=(1, 2)), proposal=verifier.proposal)
    for budget in (None, 0):
        found = Controller(Prices(COSTLY_DRAFTS, frozen=True), budget=budget)
        assert found.cut([tree], [(False, 0)], [2], 1, [None])[0] == [tree]
        selected = replace(tree, proposal=Proposal.TOP_K)
        assert found.cut([selected], [(False, 0)], [2], 1, [None])[0] != [selected]


@pytest.mark.slow
def test_texts_of_lists_with_one_seed_follow_the_law_over_seeds():
    """Eight prompts, two at once, by the public interface, without a line of the enumeration."""
    tables = toy_pair(1)
    prompts, length = [[0, *divmod(place, 3)] for place in range(8)], 3
    found: list[list[tuple[int, ...]]] = [[] for _ in prompts]
    for seed in range(2000):
        target, drafter = TabularTarget(tables.target), TabularDrafter(tables.draft, 3)
        decoder = Decoder(target, drafter, Chain(depth=2), RRSw, learned=LearnedState(COSTLY_DRAFTS))
        texts = decoder.generate(prompts, temperature=1.0, seed=seed, max_new_tokens=length, max_batch=2)
        for place, text in enumerate(texts):
            found[place].append(tuple(text.tokens))
    for prompt, texts in zip(prompts, found, strict=True):
        law = {(): 1.0}
        for _ in range(length):
            law = {
                (*text, token): weight * chance
                for text, weight in law.items()
                for token, chance in enumerate(tables.target.logits((*prompt[1:], *text)).softmax(-1).tolist())
            }
        assert p_value(texts, law) > 0.01 / len(prompts)
