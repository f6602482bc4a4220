"""Every admissible pair of policy and verifier has the target's law: all draws and all decisions, enumerated."""

import math

import pytest
import torch

from drafttree import Verdict
from drafttree.engine.compatibility import incompatibility
from drafttree.errors import ConfigError
from drafttree.evaluation import scripted_random
from drafttree.evaluation.pair_sweep import sweep_pair, sweep_pairs
from drafttree.evaluation.pair_trials import FORMS, LARGE
from drafttree.exactness import ScriptedRandom, TabularModel, TextLaw, coupled_text, law, outcomes, trees
from drafttree.loading import make_policy
from drafttree.policies import POLICIES, Chain, TreePolicy
from drafttree.verifiers import (
    RRS,
    VERIFIERS,
    Block,
    Coupled,
    GreedyMultiDraft,
    KSeq,
    PointMass,
    RRSw,
    Traversal,
)
from drafttree.verifiers.base import residual
from helpers.splitmix import plain_uniform
from testing.toy_pairs import EXACT, LARGE_PAIRS, LARGE_TREES, PAIRS, SMALL_TREES, constant, toy_pair


def names(pairs: list) -> list[str]:
    return [f"{name}-{verifier.__name__}" for name, _, verifier in pairs]


def numbered(pairs: list) -> list:
    return [(*pair, index) for index, pair in enumerate(pairs)]


def check_sane(found: TextLaw, levels: int) -> None:
    assert sum(found.committed.values()) == pytest.approx(1, abs=1e-9)
    assert sum(found.lengths.values()) == pytest.approx(1, abs=1e-9)
    assert 0 <= min(found.lengths) <= max(found.lengths) <= levels
    assert found.expected_accepted == pytest.approx(sum(n * w for n, w in found.lengths.items()))


# Here a part of the pairs is tried in each kind of world; the slow tests below try all of them in more.


@pytest.mark.few(10)
@pytest.mark.parametrize(("name", "policy", "verifier", "index"), numbered(PAIRS)[::4], ids=names(PAIRS)[::4])
def test_a_pair_has_the_targets_law(name, policy, verifier, index):
    tables = toy_pair(index)
    found = law(tables.target, tables.draft, policy, verifier)
    assert found.total_variation < EXACT
    check_sane(found, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy", "verifier", "index"), numbered(PAIRS)[5::8], ids=names(PAIRS)[5::8])
def test_a_pair_has_the_targets_law_over_four_tokens(name, policy, verifier, index):
    tables = toy_pair(1000 + index, vocab=4)
    assert law(tables.target, tables.draft, policy, verifier, levels=2).total_variation < EXACT


@pytest.mark.few(7)
@pytest.mark.parametrize("temperature", [0.3, 1.7])
@pytest.mark.parametrize("verifier", [PointMass, RRSw, RRS, Traversal, Block, KSeq, GreedyMultiDraft])
def test_a_pair_has_the_targets_law_at_any_temperature(verifier, temperature):
    tables = toy_pair(8)
    policy = Chain(depth=2) if verifier.chains_only else SMALL_TREES["ragged"]
    found = law(tables.target, tables.draft, policy, verifier, temperature=temperature)
    assert found.total_variation < EXACT


@pytest.mark.few(5)
@pytest.mark.parametrize("draft_temperature", [0.6, 1.25])
@pytest.mark.parametrize("verifier", [PointMass, RRSw, RRS, Traversal, Block, KSeq, GreedyMultiDraft])
def test_a_pair_has_the_targets_law_at_any_draft_temperature(verifier, draft_temperature):
    tables = toy_pair(8)
    policy = Chain(depth=2) if verifier.chains_only else SMALL_TREES["ragged"]
    found = law(tables.target, tables.draft, policy, verifier, draft_temperature=draft_temperature)
    assert found.total_variation < EXACT
    usual = law(tables.target, tables.draft, policy, verifier)
    drawn = verifier is not PointMass  # whose tree has the drafter's best tokens, which are the same
    assert (abs(found.expected_accepted - usual.expected_accepted) > 1e-6) is drawn


def check_pair(policy: str, verifier: str, models: int) -> None:
    found = sweep_pair(policy, verifier, models=models)
    refused = incompatibility(make_policy(FORMS[policy][0]), VERIFIERS[verifier]) is not None
    assert (found.verdict == "refused") is refused
    if found.verdict == "exact":
        assert found.total_variation is not None
        assert found.total_variation < EXACT
    elif found.verdict == "coupled":
        assert found.equal == found.texts >= models
    else:
        assert refused or verifier.startswith("lossy-")
    if not refused:
        assert found.reach.levels == 5
        chains = policy == "chain" or VERIFIERS[verifier].chains_only
        assert found.reach.siblings == 1 if chains else found.reach.siblings >= 4


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("policy", "verifier"),
    [
        *[(policy, "point-mass") for policy in FORMS],
        *[(policy, "traversal") for policy in ("chain", "template", "eagle")],
        ("chain", "coupled"),
        ("auto", "coupled"),
        ("template", "lossy-typical"),
    ],
)
def test_a_pair_is_what_it_claims_to_be(policy, verifier):
    """Wide, deep, and in texts of several rounds."""
    check_pair(policy, verifier, models=1)


@pytest.mark.slow
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("policy", FORMS)
def test_a_pair_is_what_it_claims_to_be_in_many_models(policy, verifier):
    """Chains, binary, ragged and adaptive trees over three and four tokens; every admissible pair."""
    check_pair(policy, verifier, models=20)


def test_every_policy_has_small_forms_and_none_that_are_refused_apart():
    assert FORMS.keys() == LARGE.keys() == POLICIES.keys()
    for name, forms in FORMS.items():
        assert all(type(make_policy(form)) is POLICIES[name] for form in (*forms, *LARGE[name]))


class Careless(RRSw):
    """Takes a rejected token out of q and leaves the rest as it is."""

    def reject(self, p, q, token):
        return residual(p, q), q.index_fill(0, torch.tensor(token), 0.0)


class Hasty(Coupled):
    """Accepts whatever child comes first."""

    def verify(self, tree, logits, randomness):
        verdict = super().verify(tree, logits, randomness)
        path, bonus = verdict
        return verdict if len(path) > 1 or tree.size == 1 else Verdict([0, 1], bonus)


@pytest.mark.parametrize("verifier", [Careless, Hasty])
def test_a_biased_pair_is_called_so(verifier, monkeypatch):
    monkeypatch.setitem(VERIFIERS, "wrong", verifier)
    table = sweep_pairs(["template"], ["wrong"], models=1)
    assert [finding.verdict for finding in table.findings] == ["BIASED"]
    assert not table.passed
    assert table.summary()["passed"] is False


def test_a_tree_too_large_to_enumerate_is_refused(monkeypatch):
    monkeypatch.setattr(scripted_random, "MOST", 100)
    with pytest.raises(ConfigError, match="Template with RRS has more than 100 outcomes"):
        sweep_pair("template:tree=binary-2", "rrs", models=1)


def test_the_outcomes_of_trees_and_verdicts_are_counted_together(monkeypatch):
    """Three trees, and never more than five verdicts on one."""
    tables = toy_pair(1)
    monkeypatch.setattr(scripted_random, "MOST", 8)
    with pytest.raises(ConfigError, match="Chain with RRSw has more than 8 outcomes"):
        law(tables.target, tables.draft, Chain(depth=1), RRSw)


SHAPES = [
    {"top_k": 2},
    {"top_p": 0.7},
    {"min_p": 0.3},
    {"typical_p": 0.8},
    {"epsilon_cutoff": 0.2},
    {"eta_cutoff": 0.3},
]


@pytest.mark.few(11)
@pytest.mark.parametrize("shape", [*SHAPES, {"top_h": 0.5}, {"temperature": 0.6, "top_k": 2, "min_p": 0.1}])
@pytest.mark.parametrize("verifier", [PointMass, RRSw, Traversal])
def test_a_pair_has_the_targets_law_under_any_sampling(verifier, shape):
    tables = toy_pair(1)
    plain = law(tables.target, tables.draft, SMALL_TREES["siblings"], verifier)
    found = law(tables.target, tables.draft, SMALL_TREES["siblings"], verifier, **shape)
    assert found.total_variation < EXACT
    assert found.committed != plain.committed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            (TabularModel(3, 1, 0), TabularModel(4, 1, 1), Chain(depth=1), RRSw),
            "3 tokens, the draft 4; it may not",
        ),
        (
            (TabularModel(3, 1, 0), TabularModel(3, 1, 1), Chain(depth=1), "rrsw"),
            "the verifier is 'rrsw'; give a class",
        ),
        ((TabularModel(3, 1, 0), TabularModel(3, 1, 1), "chain", RRSw), "the policy is 'chain'; give a TreePolicy"),
    ],
)
def test_arguments_that_are_none_are_refused(arguments, words):
    for run in (law, coupled_text):
        with pytest.raises(ConfigError, match=words):
            run(*arguments)


@pytest.mark.parametrize("option", ["seed", "temprature"])
def test_an_option_the_law_does_not_have_is_refused(option):
    with pytest.raises(ConfigError, match=f"unknown option '{option}'"):
        law(TabularModel(3, 1, 0), TabularModel(3, 1, 1), Chain(depth=1), RRSw, **{option: 1})


@pytest.mark.parametrize(("vocab", "depth"), [(0, 1), (3, -1)])
def test_a_table_has_tokens_and_a_depth(vocab, depth):
    with pytest.raises(ConfigError, match=f"a table of {vocab} tokens and depth {depth}"):
        TabularModel(vocab, depth, 0)


def test_accepting_with_a_probability_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="probability NaN"):
        ScriptedRandom([]).accept(math.nan)


@pytest.mark.parametrize("temperature", [0.3, 2.0])
def test_a_text_of_coupled_is_the_one_of_plain_decoding_with_the_same_noise(temperature):
    """Plain decoding written out: the noise of SplitMix64 itself, and one argmax after the other."""
    for seed in range(10):
        tables = toy_pair(seed)
        options = {"seed": seed, "temperature": temperature, "length": 7}
        found = coupled_text(tables.target, tables.draft, Chain(depth=3), Coupled, **options)
        expected: tuple[int, ...] = ()
        for position in range(1, 8):
            randomness = [-math.log(-math.log(u)) for u in plain_uniform(seed, position, 3)]
            logits = (tables.target.logits(expected) / temperature).tolist()
            expected += (max(range(3), key=lambda token: logits[token] + randomness[token]),)
        assert found.tokens == found.plain == expected


@pytest.mark.few(3)
@pytest.mark.parametrize("verifier", [PointMass, RRSw, Traversal])
@pytest.mark.parametrize("place", [{"position": 9}, {"earlier": 2, "position": 4}, {"rounds": 2}], ids=str)
def test_a_pair_has_the_targets_law_anywhere_in_a_text(verifier, place):
    tables = toy_pair(8)
    found = law(tables.target, tables.draft, SMALL_TREES["dynatree"], verifier, levels=1, **place)
    assert found.total_variation < EXACT
    assert {len(tokens) for tokens in found.committed} <= {1, 2, 3, 4}
    assert found.committed != law(tables.target, tables.draft, SMALL_TREES["dynatree"], verifier, levels=1).committed


def test_the_law_of_two_rounds_by_hand():
    """Independent rows: two rounds are two times one."""
    tables = constant([0.2, 0.5, 0.3], [0.6, 0.3, 0.1])
    one, two = (law(tables.target, tables.draft, Chain(depth=1), RRSw, levels=1, rounds=rounds) for rounds in (1, 2))
    assert one.expected_accepted == pytest.approx(two.expected_accepted) == pytest.approx(0.6)
    assert two.lengths == pytest.approx({0: 0.16, 1: 0.48, 2: 0.36})
    assert two.committed[1, 1] == pytest.approx((0.4 * 0.5) ** 2)


def test_the_law_tells_how_large_its_trees_were():
    tables = toy_pair(8)
    found = law(tables.target, tables.draft, SMALL_TREES["every token"], PointMass)
    assert (found.reach.siblings, found.reach.levels) == (3, 1)
    deep = toy_pair(8, vocab=2)
    assert law(deep.target, deep.draft, Chain(depth=6), RRSw, levels=5).reach.levels == 5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy", "verifier", "index"), numbered(LARGE_PAIRS), ids=names(LARGE_PAIRS))
def test_a_pair_has_the_targets_law_on_larger_trees(name, policy, verifier, index):
    for seed in range(2000 + index, 2002 + index):
        tables = toy_pair(seed)
        found = law(tables.target, tables.draft, policy, verifier)
        assert found.total_variation < EXACT, seed
        check_sane(found, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy", "verifier", "index"), numbered(PAIRS), ids=names(PAIRS))
def test_a_pair_has_the_targets_law_in_more_worlds(name, policy, verifier, index):
    for seed in range(4):
        tables = toy_pair(3000 + index + seed, vocab=3 + seed % 2)
        assert law(tables.target, tables.draft, policy, verifier).total_variation < EXACT, seed


@pytest.mark.few(3)
@pytest.mark.parametrize("name", [name for name in SMALL_TREES if name.startswith(("dynatree", "talon", "fixed"))])
def test_the_shapes_of_adaptive_trees_really_vary(name):
    shapes = {shape for seed in range(5) for shape in shapes_of(SMALL_TREES[name], seed)}
    assert len(shapes) > 1 or name == "fixed without a gate"


@pytest.mark.few(5)
@pytest.mark.parametrize("policy", [*SMALL_TREES.values(), *LARGE_TREES.values()], ids=[*SMALL_TREES, *LARGE_TREES])
def test_a_sampled_tree_keeps_its_budget(policy):
    assert all(len(shape) <= policy.budget for seed in (4, 5) for shape in shapes_of(policy, seed))


def shapes_of(policy: TreePolicy, seed: int) -> set[tuple[int, ...]]:
    """The parents of the nodes, in every tree that can be drawn."""
    grown = trees(toy_pair(seed).draft, policy, RRSw)
    return {tuple(tree.parents) for _, tree in grown}


def test_the_probabilities_of_all_outcomes_sum_to_one():
    def roll(randomness: ScriptedRandom) -> tuple[int, bool]:
        token = randomness.draw(torch.tensor([0.2, 0.0, 0.8]))
        return token, randomness.accept(0.3 if token else 1.0)

    found = {result: weight for weight, result in outcomes(roll)}
    assert found == pytest.approx({(0, True): 0.2, (2, True): 0.24, (2, False): 0.56})


def test_a_random_number_that_is_used_twice_gives_answers_that_agree():
    """A round that begins again has the same numbers; another round has others."""

    def ask(randomness: ScriptedRandom) -> tuple[bool, bool, bool]:
        again = randomness.at(5).accept(0.3), randomness.at(5).accept(0.5)
        return *again, randomness.at(6).accept(0.5)

    found = {result: weight for weight, result in outcomes(ask)}
    pairs = {(True, True): 0.3, (False, True): 0.2, (False, False): 0.5}
    assert found == pytest.approx({(*pair, new): weight / 2 for pair, weight in pairs.items() for new in (True, False)})


def test_drawing_from_nothing_is_refused():
    with pytest.raises(ConfigError, match="without mass"):
        ScriptedRandom([]).draw(torch.zeros(3))


def test_gumbel_noise_cannot_be_enumerated():
    tables = toy_pair(1)
    with pytest.raises(ConfigError, match="comparing texts"):
        law(tables.target, tables.draft, Chain(depth=1), Coupled)


def test_a_law_by_hand():
    tables = constant([0.2, 0.5, 0.3], [0.6, 0.3, 0.1])
    found = law(tables.target, tables.draft, Chain(depth=1), RRSw)
    assert found.expected_accepted == pytest.approx(0.2 + 0.3 + 0.1)
    assert found.committed[1, 2] == pytest.approx(0.3 * 0.3)
    assert found.committed[(1,)] == pytest.approx(0.4 * 0.5)
    assert found.lengths == pytest.approx({0: 0.4, 1: 0.6})


def test_without_children_only_the_bonus_is_committed():
    tables = toy_pair(1)
    for verifier in (RRSw, RRS, Traversal, Block, KSeq, GreedyMultiDraft, PointMass):
        found = law(tables.target, tables.draft, Chain(depth=2, budget=1), verifier)
        assert found.lengths == {0: pytest.approx(1)}
        assert found.total_variation < EXACT


def unsure(table: TabularModel, seed: int) -> TabularModel:
    """A draft that proposes some tokens or none, with a column for what it leaves over."""
    generator = torch.Generator().manual_seed(seed)
    copy = TabularModel(table.vocab, table.depth, 0)
    for context, row in table.rows.items():
        proposed = torch.rand(table.vocab, generator=generator) < 0.5
        left = torch.rand(1, generator=generator, dtype=torch.float64) if proposed.any() else torch.ones(1)
        known = (1 - left) * row.masked_fill(~proposed, -torch.inf).softmax(-1) if proposed.any() else 0 * row
        copy.rows[context] = torch.cat((known, left.double())).log()
    return copy


@pytest.mark.few(10)
@pytest.mark.parametrize(("name", "policy", "verifier", "index"), numbered(PAIRS)[3::4], ids=names(PAIRS)[3::4])
def test_a_pair_has_the_targets_law_where_the_draft_proposes_few_tokens_or_none(name, policy, verifier, index):
    tables = toy_pair(4000 + index)
    for seed in range(3):
        found = law(tables.target, unsure(tables.target, seed), policy, verifier)
        assert found.total_variation < EXACT
        check_sane(found, 3)
