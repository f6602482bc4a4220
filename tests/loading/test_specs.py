"""Specifications become policies and verifiers, or one line that says what is wrong."""

from types import SimpleNamespace

import pytest

from drafttree.errors import ConfigError
from drafttree.loading import (
    find_verifier,
    make_policy,
    parse_policies,
    policy_spec,
)
from drafttree.loading.specs import default_policy
from drafttree.policies import POLICIES, Auto, Chain, DynaTree, Eagle, Talon
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Traversal
from helpers.refusals import told


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_made_from_its_name(name):
    assert type(make_policy(name)) is POLICIES[name]


def test_the_policy_nobody_names_follows_from_verifier_and_drafter():
    flat, other = SimpleNamespace(flat=True, levels=7), SimpleNamespace(levels=7)
    for verifier in (None, Greedy, Coupled):
        assert default_policy(verifier, flat) == Auto(flat=True)
        assert default_policy(verifier, other) == default_policy(verifier) == Auto()
        assert default_policy(verifier, flat, sharded=True) == Chain(depth=7)
        assert default_policy(verifier, other, sharded=True) == DynaTree()
    assert default_policy(Traversal, flat) == Chain(depth=7)
    assert default_policy(Traversal, other) == default_policy(Traversal) == DynaTree()
    assert policy_spec(Auto(flat=True)) == "auto:flat=true"
    assert make_policy("auto:flat=true") == Auto(flat=True)


def test_parameters_are_parsed():
    assert make_policy("talon:budget=20,margin=0.5") == Talon(budget=20, margin=0.5)
    assert make_policy("talon: budget = 20 , depth=none,") == Talon(budget=20, depth=None)
    assert make_policy("talon:") == Talon()
    assert make_policy(chosen := Talon(width=3)) is chosen


def test_a_preset_stands_for_its_parameters_and_those_after_it_take_precedence():
    paper = DynaTree(base_depth=6, max_depth=9, level1_top1=True, first_come=True, budget=257)
    assert make_policy("dynatree:paper") == paper
    assert policy_spec(paper) == "dynatree:budget=257,base_depth=6.0,max_depth=9,level1_top1=true,first_come=true"
    assert make_policy("dynatree: paper , budget=64,max_depth=10") == paper.model_copy(
        update={"budget": 64, "max_depth": 10}
    )
    assert make_policy("eagle:paper") == Eagle(depth=9, top_k=10, budget=60)
    assert list(parse_policies(["chain,eagle:paper,top_k=4;eagle:paper,chain:depth=2"])) == [
        "chain",
        "eagle:depth=9,top_k=4",
        "eagle:depth=9",
        "chain:depth=2",
    ]


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("dynatree:papr", ["'papr' in policy 'dynatree:papr'", "parameter=value, nor a preset (paper)"]),
        ("dynatree:budget=64,paper", ["'paper'", "not of the form parameter=value"]),
        ("talon:paper", ["'paper' in policy 'talon:paper'", "parameter=value"]),
        ("tallon", ["unknown policy 'tallon'", "did you mean 'talon'"]),
        ("opttree", ["did you mean 'opt-tree'"]),
        ("zzz", ["unknown policy 'zzz'", "known:", "dynatree"]),
        ("", ["unknown policy ''"]),
        ("talon:budgets=4", ["'budgets'", "did you mean 'budget'"]),
        ("talon:budget", ["'budget'", "parameter=value"]),
        ("talon:budget=many", ["budget is 'many'", "integer"]),
        ("talon:budget=0", ["budget is '0'", "between 1 and 4096"]),
        ("talon:margin=1.5", ["margin is '1.5'", "between 0 and 1"]),
    ],
)
def test_bad_policies_are_told(spec, parts):
    message = told(ConfigError, make_policy, spec)
    assert all(part in message for part in parts), message


def test_lists_of_policies():
    assert list(parse_policies(["all"])) == list(POLICIES)
    wanted = ["chain", "talon:margin=0.05", "eagle"]
    assert list(parse_policies(["chain,talon:budget=60,margin=0.05;eagle"])) == wanted
    assert list(parse_policies([*wanted, "chain", Talon(margin=0.05), Talon])) == [*wanted, "talon"]
    assert "did you mean 'talon'" in told(ConfigError, parse_policies, ["chain,talom"])


def test_verifiers_have_names():
    assert find_verifier("auto") is None
    assert all(find_verifier(name) is verifier for name, verifier in VERIFIERS.items())
    assert "did you mean 'coupled'" in told(ConfigError, find_verifier, "copled")


def test_a_parameter_given_twice_is_told():
    assert "gives budget twice" in told(ConfigError, make_policy, "talon:budget=5,budget=9")


def test_a_template_of_endless_ranks_is_told():
    assert "below 4096" in told(ConfigError, make_policy, "template:paths=99999999999")
