"""Every policy with every verifier: exact by enumeration, checked elsewhere, lossy by name, or refused."""

from typing import ClassVar

import pytest
from pydantic import Field

from drafttree import Decoder
from drafttree.engine.compatibility import incompatibility
from drafttree.errors import ConfigError
from drafttree.policies import POLICIES, Auto, Chain, DynaTree, DySpec, Eagle, Fixed, OptTree, Talon, Template
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Traversal, Verifier
from testing.costs import toy_decoder
from testing.toy import Table, ToyDrafter, ToyModel

SMALL = {
    "auto": Auto(depth=2, children=2, budget=5),
    "chain": Chain(depth=2),
    "fixed": Fixed(depth=2, breadth=2, threshold=0.4, budget=5),
    "template": Template(paths=((0,), (1,), (0, 0))),
    "dynatree": DynaTree(base_depth=1, max_depth=2, mid_breadth=1, max_breadth=2, high=0.7, low=0.6, budget=5),
    "talon": Talon(width=2, margin=0.5, depth=2, budget=5),
    "eagle": Eagle(depth=2, top_k=2, budget=5),
    "opt-tree": OptTree(threshold=0.2, depth=2, budget=5),
    "dyspec": DySpec(depth=2, budget=5),
}

COLUMNS = list(VERIFIERS)
TABLE = {
    #            greedy   coupled  point-mass rrsw    rrs     traversal block   k-seq   multi-draft lossy-typical
    "auto": "    compared compared exact      exact   exact   exact     exact   exact   exact       lossy",
    "chain": "   compared compared exact      exact   exact   exact     exact   exact   exact       lossy",
    "fixed": "   compared compared exact      exact   exact   exact     refused exact   exact       lossy",
    "template": "compared compared exact      exact   exact   exact     refused exact   exact       lossy",
    "dynatree": "compared compared exact      exact   exact   exact     refused exact   exact       lossy",
    "talon": "   compared compared exact      exact   exact   exact     refused exact   exact       lossy",
    "eagle": "   compared compared exact      refused refused refused   refused refused refused     lossy",
    "opt-tree": "compared compared exact      refused refused refused   refused refused refused     lossy",
    "dyspec": "  compared compared exact      refused refused refused   refused refused refused     lossy",
}
CELLS = [
    pytest.param(SMALL[policy], VERIFIERS[verifier], verdict, id=f"{policy}-{verifier}")
    for policy, row in TABLE.items()
    for verifier, verdict in zip(COLUMNS, row.split(), strict=True)
]


def cells(*verdicts: str) -> list:
    return [cell for cell in CELLS if cell.values[2] in verdicts]


def decoder(policy, verifier: type[Verifier] | None) -> Decoder:
    return toy_decoder(ToyModel(Table()), ToyDrafter(Table()), policy, verifier)


def test_every_pair_has_its_place_in_the_table():
    assert TABLE.keys() == POLICIES.keys()
    assert len(CELLS) == len(POLICIES) * len(VERIFIERS)


@pytest.mark.parametrize(("policy", "verifier", "verdict"), cells("exact"))
def test_an_exact_pair_is_allowed(policy, verifier, verdict):
    """Their law is enumerated in the tests of exactness."""
    assert incompatibility(policy, verifier) is None
    assert verifier.lossless
    decoder(policy, verifier)


@pytest.mark.parametrize(("policy", "verifier", "verdict"), cells("compared"))
def test_a_pair_without_randomness_of_its_own_is_allowed(policy, verifier, verdict):
    """Their texts are compared with plain decoding token by token, in the tests of the decoder."""
    assert incompatibility(policy, verifier) is None
    decoder(policy, verifier)


@pytest.mark.parametrize(("policy", "verifier", "verdict"), cells("refused"))
def test_a_refused_pair_cannot_be_built_and_says_why_and_what_can(policy, verifier, verdict):
    with pytest.raises(ConfigError) as error:
        decoder(policy, verifier)
    message = str(error.value)
    assert message.startswith(f"{type(policy).__name__} with {verifier.__name__} is not lossless: ")
    assert "\n" not in message
    rule, _, remedy = message.partition("; use ")
    assert "must stay in the tree" in rule or "chains only" in rule
    assert any(f"'{name}'" in remedy for name in (*POLICIES, *VERIFIERS))


@pytest.mark.parametrize("policy", [SMALL["eagle"], SMALL["opt-tree"], SMALL["dyspec"]])
def test_a_policy_that_ranks_again_exists_in_selected_form_only(policy):
    assert f"{type(policy).__name__} exists in selected form only" in (incompatibility(policy, Traversal) or "")


@pytest.mark.parametrize(("policy", "verifier", "verdict"), cells("refused"))
def test_a_refused_pair_names_pairs_that_are_allowed(policy, verifier, verdict):
    remedy = (incompatibility(policy, verifier) or "").partition("; use ")[2]
    policies = [SMALL[name] for name in POLICIES if f"'{name}'" in remedy]
    verifiers = [VERIFIERS[name] for name in VERIFIERS if f"'{name}'" in remedy]
    assert all(incompatibility(other, verifier) is None for other in policies)
    assert all(incompatibility(policy, other) is None for other in verifiers)
    assert policies or verifiers


class ReRankingChain(Chain):
    """A user's chain that draws no children."""

    reranks: ClassVar[bool] = True


@pytest.mark.parametrize("policy", [*SMALL.values(), ReRankingChain(depth=2)], ids=[*SMALL, "re-ranking chain"])
def test_the_verifier_nobody_names(policy):
    """It is lossless with the policy, and the same with a seed and without."""
    engine = decoder(policy, None)
    assert type(engine.new_request([1]).task.verifier) is Greedy
    assert type(engine.new_request([1], seed=0).task.verifier) is Greedy
    for options in ({}, {"seed": 0}):
        assert type(engine.new_request([1], temperature=0.7, **options).task.verifier) is Coupled
    assert incompatibility(policy, Coupled) is incompatibility(policy, Greedy) is None


@pytest.mark.parametrize("name", VERIFIERS)
def test_no_lossy_verifier_is_ever_chosen_unless_named(name):
    assert VERIFIERS[name].lossless is not name.startswith("lossy-")
    plain = Decoder(ToyModel(Table()), ToyDrafter(Table()), Chain())
    assert all(plain.new_request([1], temperature=t).task.verifier.lossless for t in (0.0, 0.7))


class Weighted(Chain):
    weights: list[float] = Field(default=[1.0])


def test_a_policy_whose_fields_cannot_be_compared_by_hash_is_refused():
    with pytest.raises(
        ConfigError, match=r"^Weighted\(\) cannot be a key of a dict: .*'list'; use tuples for its fields$"
    ):
        toy_decoder(ToyModel(Table()), None, Weighted(), None)
