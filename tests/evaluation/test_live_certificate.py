"""Bets on the tokens of a pair: fair where it keeps the target's law, and won where it does not."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import drafttree
from drafttree.core.randomness import SeededRandomness
from drafttree.core.sampling import Sampling
from drafttree.engine.drafting.learned_state import LearnedState
from drafttree.errors import ConfigError
from drafttree.evaluation.audit import Audit
from drafttree.evaluation.biased_numbers import BiasedNumbers
from drafttree.evaluation.evidence import ACCEPTANCE, BESIDE, BETS, BIAS, IMPOSSIBLE, STAKES, Evidence
from drafttree.evaluation.live_certificate import certify_live
from drafttree.evaluation.pair_trials import COSTLY_DRAFTS, toy_pair
from drafttree.evaluation.scripted_random import outcomes
from drafttree.evaluation.toy_decoder import SteppedEngine, ToyDecoder
from drafttree.grammar import regex
from drafttree.loading import make_policy
from drafttree.measure.run_store import RunStore
from drafttree.verifiers import RRS, VERIFIERS, Block, GreedyMultiDraft, KSeq, PointMass, RRSw, Traversal

PROMPTS = ["The old man looked at the sea", "In the year of our Lord", "She opened the door and"]
GAUSS = tuple(0.5 + sign * 0.5 / math.sqrt(3) for sign in (-1, 1))
"""Numbers over which the mean of a polynomial of degree 3 is that over all of the unit interval."""


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32")


def mean_wealth(verifier, policy, seed, texts=1, length=3, **options) -> dict[str, np.ndarray]:
    """Per bet, the mean wealth of each stake over all draws of a toy pair's texts.

    The numbers that randomise places are drawn too: wealth is of degree 2 in each of them at most.
    """
    pair = toy_pair(seed, 3 if texts == 1 else 2)

    def write(script):
        given = {"script": script, "costs": COSTLY_DRAFTS}
        toy, audit = ToyDecoder(pair.target, pair.draft, policy, verifier, 2, **given), Audit()
        numbers = script.of(-1)
        audit._numbers = SimpleNamespace(random=lambda: GAUSS[numbers.accept(0.5)], integers=lambda most: 0)
        shared = {"max_new_tokens": length, "temperature": 1.0, "observer": audit, **options}
        if texts == 1:
            toy.generate([0], seed=0, **shared)
        else:
            engine = SteppedEngine(toy, max_batch=texts)
            for text in range(texts):
                engine.submit([0], seed=text, **shared)
            engine.run()
        return audit.evidence

    total, wealth = 0.0, {name: np.zeros(len(STAKES)) for name in BETS}
    for weight, evidence in outcomes(write):
        total += weight
        for name in BETS:
            wealth[name] += weight * np.exp(evidence.log_wealth[name])
    assert total == pytest.approx(1)
    return wealth


def check_fair(wealth: dict[str, np.ndarray]) -> None:
    """No token is impossible here, so the wealth of who bets on such only falls."""
    assert (wealth.pop(IMPOSSIBLE) < 1).all()
    for name, means in wealth.items():
        assert means == pytest.approx(np.ones(len(STAKES)), abs=1e-12), name


POLICIES = [
    "chain:depth=2",
    "dyspec:depth=2,budget=4",
    "talon:width=2,margin=0.5,budget=4",
    "opt-tree:threshold=0.2,depth=2,budget=4",
]


@pytest.mark.parametrize("seed", [1, 6])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("verifier", [RRSw, Traversal, Block, GreedyMultiDraft, PointMass, KSeq, RRS])
def test_bets_are_fair_over_all_draws_of_a_lossless_pair(verifier, policy, seed):
    if verifier is Block and not policy.startswith("chain"):
        policy = "chain:depth=1"
    if verifier in (RRS, KSeq) and not policy.startswith("chain"):
        policy = "talon:width=2,margin=0.5,budget=3"
    check_fair(mean_wealth(verifier, make_policy(policy), seed, length=2 if policy.startswith("talon") else 3))


@pytest.mark.parametrize("verifier", [RRSw, Traversal])
def test_bets_are_fair_in_company_and_behind_a_truncation(verifier):
    for options in ({"texts": 2, "length": 2}, {"top_k": 2}):
        check_fair(mean_wealth(verifier, make_policy("chain:depth=1"), 1, **options))


def test_a_bias_makes_a_bet_unfair():
    wealth = mean_wealth(VERIFIERS["lossy-typical"], make_policy("chain:depth=2"), 6)
    assert max(own.max() for own in wealth.values()) > 1.1


@pytest.mark.parametrize("verifier", ["coupled", "rrsw", "traversal", "multi-draft", "point-mass"])
def test_no_evidence_is_found_against_lossless_pairs(verifier, decoder):
    pair = decoder.with_policy("dynatree").with_verifier(verifier)
    certificate = certify_live(pair, PROMPTS, tokens=600, max_new_tokens=60)
    assert certificate.passed
    assert certificate.lossless
    assert certificate.written.evidence.tokens >= 600
    assert certificate.written.evidence.log_e_value < math.log(20)
    assert (certificate.written.evidence.first_tokens == 0) is (verifier == "coupled")
    assert (certificate.written.evidence.shift > 0) is (verifier != "coupled")


def test_texts_in_company_are_bet_on(decoder):
    pair = decoder.with_policy("chain").with_verifier("rrsw")
    certificate = certify_live(pair, PROMPTS, tokens=400, max_new_tokens=40, max_batch=3, top_p=0.9)
    assert certificate.passed
    assert certificate.written.texts >= 10
    assert certificate.written.evidence.impossible == 0
    assert any(certificate.written.evidence.log_wealth[BESIDE])


def greedy_bonus(monkeypatch, verifier):
    """Let a verifier take the likeliest token as its bonus."""
    verify = verifier.verify

    def wrong(self, tree, logits, randomness):
        path, _ = verify(self, tree, logits.clone(), randomness)
        return path, int(logits[path[-1]].argmax())

    monkeypatch.setattr(verifier, "verify", wrong)


def test_a_greedy_bonus_is_refuted_in_few_tokens(decoder, monkeypatch):
    greedy_bonus(monkeypatch, Traversal)
    pair = decoder.with_policy("chain").with_verifier("traversal")
    certificate = certify_live(pair, PROMPTS, tokens=5000, max_new_tokens=64)
    assert certificate.refuted
    assert not certificate.passed
    assert certificate.written.evidence.tokens < 1440


def test_a_lossy_verifier_is_refuted_and_named(decoder):
    certificate = certify_live(decoder.with_policy("dynatree").with_verifier("lossy-typical"), PROMPTS, tokens=2160)
    assert certificate.refuted
    assert not certificate.lossless


def test_shared_random_numbers_of_texts_are_refuted(decoder, monkeypatch):
    monkeypatch.setattr(LearnedState, "unshared_seed", lambda self, seed: seed)
    audit = Audit(0)
    with SteppedEngine(decoder.with_policy("chain").with_verifier("rrsw"), max_batch=2) as engine:
        for _ in range(2):  # in step from the first round on, however busy the machine is
            engine.submit(PROMPTS[0], seed=4, temperature=1.0, max_new_tokens=160, ignore_eos=True, observer=audit)
        engine.run()
    assert audit.evidence.log_e_values[BESIDE] > math.log(1e6)


def test_numbers_that_repeat_from_round_to_round_are_refuted(decoder, monkeypatch):
    at = SeededRandomness.at
    monkeypatch.setattr(SeededRandomness, "at", lambda self, position: at(self, 7))
    certificate = certify_live(decoder.with_drafter(None).with_verifier("rrsw"), PROMPTS, tokens=3000)
    assert certificate.refuted


def test_tokens_beyond_a_truncation_are_refuted(decoder, monkeypatch):
    process = Sampling.process
    pair = decoder.with_policy("chain").with_verifier("rrsw")
    verify = RRSw.verify

    def blind(self, tree, logits, randomness):
        with monkeypatch.context() as patch:
            patch.setattr(Sampling, "process", lambda self, rows: process(Sampling(self.temperature), rows))
            return verify(self, tree, logits, randomness)

    monkeypatch.setattr(RRSw, "verify", blind)
    certificate = certify_live(pair, PROMPTS, tokens=300, top_k=3)
    assert certificate.refuted
    assert certificate.written.evidence.impossible > 0


def test_the_same_command_goes_on_where_it_ended(decoder, tmp_path):
    pair, told = decoder.with_policy("chain").with_verifier("rrsw"), []
    given = {"max_new_tokens": 30, "tell": told.append}
    whole = certify_live(pair, PROMPTS, tokens=200, **given)
    begun = certify_live(pair, PROMPTS, tokens=90, store=RunStore(tmp_path), **given)
    assert len(told) == 2
    assert "200 tokens will take about " in told[0]
    ended = certify_live(pair, PROMPTS, tokens=200, store=RunStore(tmp_path), **given)
    assert "110 tokens will take about " in told[2]
    assert begun.written.texts < ended.written.texts == whole.written.texts
    assert ended.written.evidence == whole.written.evidence


def test_the_smallest_bias_is_that_of_the_normal_approximation():
    evidence = Evidence()
    for _ in range(40_000):
        evidence.count_acceptance(0.4)
    assert evidence.smallest_bias is None
    for number in range(5_000):
        evidence.count_shift(float(number % 10 == 0))
    # A sum of 40,000 bets of variance 0.24 must exceed 2.33 + sqrt(2 log(10^6 * 60)) deviations, 0.0204 of a bet each;
    # of 30 % more acceptance 0.1 is seen, less two standard errors 0.0915.
    assert evidence.smallest_bias == pytest.approx(0.3 * 0.0204 / 0.0915, rel=0.05)
    assert Evidence().smallest_bias is None


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("verifier", "policy"), [("traversal", "chain"), ("rrsw", "chain"), ("multi-draft", "dynatree"), ("block", "chain")]
)
def test_the_effect_of_a_bias_is_what_the_verifier_makes_of_it(verifier, policy, decoder):
    """By the outcomes of bets on a verifier that is biased by as much."""
    pair = decoder.with_policy(policy).with_verifier(verifier)
    kind = type("Often", (pair.verifier,), {"verify": often, "lossless": True})
    fair, biased = (
        certify_live(each, PROMPTS, tokens=3000, max_new_tokens=64).written.evidence
        for each in (pair, pair.with_verifier(kind))
    )
    expected = fair.shift / fair.tried
    deviation = math.sqrt(fair.shift_squares / fair.tried**2 + biased.variance / biased.first_tokens**2)
    (stake,) = np.flatnonzero(STAKES == 2.0**-5)
    seen = biased.log_wealth[ACCEPTANCE][stake] / STAKES[stake] / biased.first_tokens + STAKES[stake] / 2 * (
        biased.variance / biased.first_tokens
    )
    assert abs(seen - expected) < 4 * deviation + 0.01


def often(self, tree, logits, randomness):
    """Accept more often by the bias that certificates measure."""
    return super(type(self), self).verify(tree, logits, BiasedNumbers(randomness, BIAS))


def test_impossible_tokens_refute_beyond_those_of_rounding():
    evidence = Evidence()
    for number in range(100_000):
        evidence.count_token(possible=number % 20_000 > 0)
    assert evidence.log_e_values[IMPOSSIBLE] < math.log(20)
    assert not evidence.refutes
    few = Evidence()
    for number in range(40):
        few.count_token(possible=number % 10 > 0)
    assert few.impossible == 4
    assert few.refutes


@pytest.mark.parametrize("verifier", ["rrsw", "coupled"])
def test_texts_that_follow_a_grammar_are_bet_on(verifier, decoder):
    pair = decoder.with_policy("chain").with_verifier(verifier)
    given = {"grammar": regex("([0-9]{3}-){1,30}"), "max_new_tokens": 40, "top_p": 0.9}
    certificate = certify_live(pair, PROMPTS, tokens=200, **given)
    assert certificate.passed
    assert certificate.written.evidence.log_e_value < math.log(20)


def test_no_more_texts_are_written_than_are_wanted(decoder):
    pair = decoder.with_policy("chain").with_verifier("rrsw")
    certificate = certify_live(pair, PROMPTS, tokens=10, max_new_tokens=8, max_batch=16, seed=2**63 - 1)
    assert (certificate.written.texts, certificate.written.evidence.tokens) == (2, 16)
    assert certificate.written.rounds >= certificate.written.drafted_rounds


def test_evidence_is_the_mean_wealth_of_all_bets():
    evidence = Evidence()
    evidence.bet(ACCEPTANCE, 0.5)
    by_hand = (np.mean(1 + 0.5 * STAKES) + 5) / 6
    assert math.exp(evidence.log_e_value) == pytest.approx(by_hand)
    more = Evidence()
    more.bet(ACCEPTANCE, -0.5)
    evidence.add(more)
    assert math.exp(evidence.log_e_values[ACCEPTANCE]) == pytest.approx(np.mean(1 - STAKES**2 / 4))


def test_places_are_those_of_the_sorted_row():
    audit = Audit()
    audit._numbers = SimpleNamespace(random=lambda: 0.25)
    row = torch.tensor([0.2, 0.5, 0.2, 0.1], dtype=torch.float64)
    found = [audit._place(row, token) for token in range(4)]
    assert found == pytest.approx([0.5 + 0.1, 0.125, 0.5 + 0.1, 0.9 + 0.025])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": 0}, "nothing is drawn"),
        ({"tokens": 0}, "tokens is 0"),
        ({"max_batch": True}, "max_batch is True"),
        ({"prompts": []}, "there is no prompt"),
    ],
)
def test_bad_arguments_are_named(given, message, decoder):
    with pytest.raises(ConfigError, match=message):
        certify_live(decoder, given.pop("prompts", PROMPTS), **given)
