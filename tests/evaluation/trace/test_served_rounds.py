"""What is seen of a request in an engine is what a trace of the same text says, and what the budget cuts is told."""

from dataclasses import replace

import pytest

from drafttree import Decoder
from drafttree.engine.batching import Engine
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.evaluation.trace import Outcome, Rule, ServedRound, TokenTexts, TracingObserver, trace_text
from drafttree.policies import Talon
from testing import random_cases
from testing.batches import TOKENIZER

PROMPT = [3, 1, 4, 1, 5]
OPTIONS = {"max_new_tokens": 20, "ignore_eos": True}
SAMPLED = {"temperature": 0.9, "seed": 5}


@pytest.fixture(scope="module")
def decoder():
    target, drafter = random_cases.target("llama").target, random_cases.drafter("llama", "near")
    return Decoder(target, drafter, Talon(width=4, budget=16), tokenizer=TOKENIZER).with_costs(TOY_COSTS)


def served(decoder: Decoder, budget: int, **options) -> list[ServedRound]:
    observer = TracingObserver(TokenTexts(TOKENIZER))
    with Engine(decoder, budget=budget) as engine:
        engine.submit(PROMPT, observer=observer, **OPTIONS, **options).result(300)
    return list(iter(observer.take, None))


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "coupled"])
def test_trees_that_are_not_cut_are_those_of_a_trace(decoder, options):
    found = served(decoder, 64, **options)
    for ours, theirs in zip(found, trace_text(decoder, PROMPT, **OPTIONS, **options).rounds, strict=True):
        own, traced = ours.traced.nodes, theirs.nodes[: theirs.size]
        assert [(node.token, node.text, node.parent, node.depth, node.rank) for node in own] == [
            (node.token, node.text, node.parent, node.depth, node.rank) for node in traced
        ]
        assert [node.outcome for node in own] == [node.outcome for node in traced]
        assert [node.target for node in own] == [
            node.target and pytest.approx(node.target, abs=1e-5) for node in traced
        ]
        assert [node.draft for node in own] == [node.seen and pytest.approx(node.seen, abs=1e-5) for node in traced]
        assert ours.traced.path == theirs.path
        assert (ours.traced.bonus.token, ours.traced.bonus.parent) == (theirs.bonus.token, theirs.bonus.parent)
        assert ours.traced.bonus.target == pytest.approx(theirs.bonus.target, abs=1e-5)


def test_nodes_that_the_budget_cut_stand_behind_the_tree(decoder):
    whole, cut = served(decoder, 64), served(decoder, 4)
    assert max(turn.traced.size for turn in cut) == 5
    first, behind = cut[0].traced, cut[0].traced.nodes[5:]
    assert {(node.outcome, node.rule) for node in behind} == {(Outcome.CUT, Rule.BUDGET)}
    assert first.cut == {"budget": len(behind)}
    assert {(node.token, node.depth, node.draft) for node in first.nodes} == {
        (node.token, node.depth, node.draft) for node in whole[0].traced.nodes
    }


def test_a_bonus_token_that_was_drafted_and_cut_says_so(decoder):
    drafted = [turn for turn in served(decoder, 1) if turn.traced.bonus.draft is not None]
    assert drafted
    for turn in drafted:
        bonus = turn.traced.bonus
        twin = next(node for node in turn.traced.nodes if (node.parent, node.token) == (bonus.parent, bonus.token))
        assert replace(twin, outcome=Outcome.BONUS) == bonus
        assert bonus.rule is Rule.BUDGET


def test_a_round_without_drafts_has_a_root_a_bonus_and_a_reason(decoder):
    turn = served(decoder, 4, speculate=False)[0]
    assert (turn.traced.size, turn.traced.path, turn.traced.widths) == (1, [0], [])
    assert turn.traced.bonus.draft is None
    assert turn.reason == "no request wants drafts"
