"""Chains that are drafted in one call are those that are drafted level by level, and so are the texts."""

from functools import partial
from typing import Any

import pytest
import torch

import drafttree
from drafttree import Decoder
from drafttree.core.randomness import Randomness
from drafttree.core.sampling import Sampling
from drafttree.drafters import HeadDrafter, LanguageModelDrafter
from drafttree.engine import grow
from drafttree.engine.drafting.tree_drafter import AdjustedDraft, LogitsAdjustment
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.policies import Chain
from drafttree.verifiers import VERIFIERS
from helpers.drafter_kinds import drafter_of, random_states, random_text
from testing import tiny
from testing.marks import needs_native

CPU = torch.device("cpu")
RANDOMNESS: Any = Randomness
"""Of no round: greedy verifiers draw nothing."""
KINDS = ["language model", "eagle3", "mtp"]


class ByLevels(Chain):
    """The same chains, a level at a time."""


class Counted(AdjustedDraft):
    """Counts the chains."""

    chains = 0

    def draft_chain(self, tokens, count: int, allowed: int):
        found = super().draft_chain(tokens, count, allowed)
        self.chains += found is not None
        return found


def rounds(drafter: Any, policy: Chain, prompts: list[int], limits: list[int], verifier: Any = None):
    """The trees of three rounds of several texts, what is committed is given; and how many chains were drafted."""
    sessions = [drafter.start(random_text(length, length), 64) for length in prompts]
    for session, length in zip(sessions, prompts, strict=True):
        session.prefill(random_states(drafter, length - 1, length), length - 1)
    trees, chains, token = [], 0, 3
    verifier = verifier or VERIFIERS["greedy"](Sampling(0.0))
    for turn in range(3):
        adjustments = [LogitsAdjustment(verifier, RANDOMNESS) for _ in sessions]
        draft = Counted(sessions, adjustments, CPU)
        trees += grow(policy, draft, [token] * len(sessions), limits, states=[None] * len(sessions), vocab=4000)
        chains += draft.chains
        for session, tree in zip(sessions, trees[-len(sessions) :], strict=True):
            tokens = [*tree.tokens[1 : 1 + turn], token]
            session.commit(tokens, random_states(drafter, len(tokens), turn))
    return trees, chains


@needs_native
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", [[6], [6, 2, 9]], ids=["one text", "three texts"])
def test_chains_in_one_call_are_those_of_levels(kind, limits):
    drafter, prompts = drafter_of(kind), [9, 1, 5][: len(limits)]
    found, chains = rounds(drafter, Chain(depth=7), prompts, limits)
    expected, none = rounds(drafter, ByLevels(depth=7), prompts, limits)
    assert (chains, none) == (3, 0)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.tokens, ours.parents, ours.levels) == (theirs.tokens, theirs.parents, theirs.levels)
        torch.testing.assert_close(ours.path_logprobs, theirs.path_logprobs, atol=1e-5, rtol=1e-5)
    assert {len(tree.widths) for tree in found} == {min(limit, 7) for limit in limits}


@pytest.mark.few(1)
@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["embedded-eagle3", "embedded-draft", "embedded-mtp"])
def test_texts_are_drafted_alike(kind, dtype):
    decoder = drafttree.load("embedded", kind, dtype=dtype)
    texts = [decoder.with_policy(policy).generate("A story", max_new_tokens=40) for policy in (Chain(), ByLevels())]
    assert texts[0].tokens == texts[1].tokens == decoder.plain().generate("A story", max_new_tokens=40).tokens
    drafted = [[(turn.levels, turn.accepted, turn.draft_passes) for turn in each.metrics.rounds] for each in texts]
    assert drafted[0] == drafted[1]


@needs_native
@pytest.mark.parametrize("budget", [2, 3, 4])
def test_chains_keep_to_the_budget(budget):
    drafter = drafter_of("eagle3")
    found, chains = rounds(drafter, Chain(depth=7, budget=budget), [9, 5], [6, 9])
    expected, _ = rounds(drafter, ByLevels(depth=7, budget=budget), [9, 5], [6, 9])
    assert chains == (3 if budget > 2 else 0)
    assert [tree.tokens for tree in found] == [tree.tokens for tree in expected]
    assert {tree.size for tree in found} == {budget}


@needs_native
def test_where_a_chain_fails_the_tree_ends_at_the_level_it_has(monkeypatch):
    def failing(*_: object) -> None:
        raise RuntimeError("no chain today")

    drafter = drafter_of("language model")
    monkeypatch.setattr(type(drafter), "draft_chain", failing)
    session = drafter.start([1, 2, 3], 64)
    session.prefill((), 2)
    draft = AdjustedDraft([session], [LogitsAdjustment(VERIFIERS["greedy"](Sampling(0.0)), RANDOMNESS)], CPU)
    told: list[Exception] = []

    def ends(error: Exception) -> bool:
        told.append(error)
        return True

    (tree,) = grow(Chain(depth=4), draft, [3], [9], states=[None], ends=ends)
    assert tree.size == 2
    assert str(told[0]) == "no chain today"


@needs_native
def test_a_drafter_that_expands_in_another_way_is_asked_level_by_level():
    class Other(LanguageModelDrafter):
        """Never drafts what its model would."""

        def draft_level(self, sessions, frontiers):
            return -super().draft_level(sessions, frontiers)

    drafter = drafter_of("language model")
    assert isinstance(drafter, LanguageModelDrafter)
    other = Other(drafter.model)
    _, chains = rounds(other, Chain(depth=4), [5], [4])
    assert chains == 0


class Negated(TargetModel):
    """Prefers what its module does not."""

    def forward(self, segments, *, hidden_layers=()):
        found = super().forward(segments, hidden_layers=hidden_layers)
        return [each._replace(logits=-each.logits) for each in found]


def of_a_model_of_another_class() -> LanguageModelDrafter:
    return LanguageModelDrafter(Negated(tiny.build("llama"), choose_backend))


def of_a_model_with_another_forward() -> LanguageModelDrafter:
    model: Any = TargetModel(tiny.build("llama"), choose_backend)
    model.forward = partial(Negated.forward, Negated(model.module, choose_backend))
    return LanguageModelDrafter(model)


def with_another_expand() -> LanguageModelDrafter:
    drafter: Any = LanguageModelDrafter(TargetModel(tiny.build("llama"), choose_backend))
    draft_level = drafter.draft_level
    drafter.draft_level = lambda sessions, frontiers: -draft_level(sessions, frontiers)
    return drafter


@needs_native
@pytest.mark.parametrize("drafter", [of_a_model_of_another_class, of_a_model_with_another_forward, with_another_expand])
def test_what_changes_logits_changes_those_of_chains(drafter):
    found, chains = rounds(drafter(), Chain(depth=4), [5], [4])
    expected, _ = rounds(drafter(), ByLevels(depth=4), [5], [4])
    assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert chains == 0


@needs_native
@pytest.mark.parametrize("name", ["coupled", "traversal"])
def test_what_verifiers_change_is_drafted_level_by_level(name):
    decoder = Decoder(TargetModel(tiny.build("llama")), None, Chain(), VERIFIERS[name])
    request = decoder.new_request([1, 2, 3], max_new_tokens=4, temperature=1.0, seed=1)
    assert not LogitsAdjustment(request.task.verifier, request.task.randomness.at(3)).changes_nothing


def test_two_heads_behind_each_other_are_asked_level_by_level():
    drafter = drafter_of("mtp, two layers")
    assert isinstance(drafter, HeadDrafter)
    _, chains = rounds(drafter, Chain(depth=4), [5], [4])
    assert chains == 0
