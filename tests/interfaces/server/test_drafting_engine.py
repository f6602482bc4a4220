"""The engine of the playground drafts in every round that may, and writes the texts that the server writes."""

import pytest

import drafttree
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.compatibility import incompatibility
from drafttree.interfaces.server.drafting_engine import drafting_engine, drafting_policy
from drafttree.policies import Auto, Talon
from drafttree.verifiers import VERIFIERS
from helpers.playground import PROMPT, playground_decoder

DEAR = CostCurve(
    target=Costs((1, 2), (1.0, 2.0)),
    draft=(DraftCosts(first=9.0, later=Costs((1, 2), (9.0, 9.0))),) * 2,
    overhead=0.1,
    plain_overhead=0.1,
)
"""Costs by which no draft is worth its time."""
TOKENS = 24


@pytest.fixture(scope="module")
def dear():
    """The shipped default, where drafting does not pay."""
    return drafttree.load("embedded", dtype="float32").with_costs(DEAR)


@pytest.fixture
def written(dear):
    with drafting_engine(dear) as engine:
        yield engine.submit(PROMPT, max_new_tokens=TOKENS).result()


def test_it_drafts_where_that_does_not_pay(dear, written):
    expected = dear.plain().generate(PROMPT, max_new_tokens=TOKENS)
    assert written.text == expected.text
    rounds = written.metrics.rounds
    assert all(turn.nodes > 1 for turn in rounds[:-1])  # before its last token a text has no room for drafts
    assert len(rounds) <= TOKENS / 2


def test_its_drafter_is_the_servers(dear):
    with drafting_engine(dear) as engine:
        assert engine.decoder.drafter is dear.drafter
    assert dear.drafter.name == "mixed:embedded-eagle3"


def test_a_policy_that_weighs_no_costs_stays(dear):
    policy = Talon(budget=24)
    assert drafting_policy(dear.with_policy(policy)) is policy


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_every_verifier_has_a_policy_that_it_may_judge(dear, verifier):
    if incompatibility(Auto(), VERIFIERS[verifier]):
        pytest.skip("auto has no form for it")
    decoder = dear.with_policy(Auto()).with_verifier(VERIFIERS[verifier])
    assert not decoder.with_policy(drafting_policy(decoder)).policy.uses_costs


def test_trees_that_are_drawn_are_drafted_but_for_some_rounds():
    decoder = playground_decoder().with_verifier(VERIFIERS["traversal"])
    with drafting_engine(decoder) as engine:
        rounds = engine.submit(PROMPT, max_new_tokens=TOKENS, temperature=1.0, seed=3).result().metrics.rounds
    assert sum(turn.nodes > 1 for turn in rounds) >= len(rounds) - 3
