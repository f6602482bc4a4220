"""Texts drafted by lookup equal plain decoding with every policy, and keep the target's law with every verifier."""

import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import LOOKUPS, LanguageModelDrafter, MixedDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.policies import Chain, Talon
from drafttree.verifiers import RRS, Block, GreedyMultiDraft, PointMass, RRSw, Traversal
from helpers.statistics import RAGGED, SMALL_P, p_value, texts_law
from helpers.statistics import TARGET as LAW
from testing import tiny
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, PROMPT, SMALL, TARGET, VOCAB, small
from testing.toy import Script, ToyDrafter, ToyModel, greedy_text

LENGTH = 40
KINDS = {
    "lookup": lambda vocab, model: PromptLookupDrafter(vocab, max_ngram=3),
    "suffix": lambda vocab, model: SuffixDrafter(vocab),
    "mixed": lambda vocab, model: MixedDrafter(SuffixDrafter(vocab), model),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_policy = pytest.mark.parametrize("name", SMALL)


def toys(kind: str, policy, verifier=None) -> Decoder:
    return toy_decoder(ToyModel(TARGET), KINDS[kind](VOCAB, ToyDrafter(DRAFT)), policy, verifier)


@every_kind
@every_policy
def test_texts_are_those_of_plain_decoding(kind, name):
    decoder = toys(kind, small(name))
    accepted = 0
    assert decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens == greedy_text(TARGET, PROMPT, LENGTH)
    for options in (
        {"temperature": 1.0, "seed": 3},
        {"temperature": 0.7, "top_p": 0.9, "top_k": 6, "min_p": 0.02, "seed": 5},
    ):
        speculative = decoder.generate(PROMPT, max_new_tokens=LENGTH, **options)
        assert speculative.tokens == decoder.plain().generate(PROMPT, max_new_tokens=LENGTH, **options).tokens
        accepted += sum(speculative.drafted)
    assert accepted


@every_kind
def test_texts_are_those_transformers_generates(kind):
    target, clone = tiny.wrap(tiny.build("llama"))
    prompt = tiny.random_tokens(6, 3)
    drafter = KINDS[kind](tiny.VOCAB, LanguageModelDrafter(tiny.wrap(tiny.build("gpt2"))[0]))
    out = toy_decoder(target, drafter, small("talon")).generate(prompt, max_new_tokens=30)
    stock = clone.generate(torch.tensor([prompt]), max_new_tokens=30, do_sample=False)
    assert out.tokens == stock[0, len(prompt) :].tolist()


@every_kind
@every_policy
def test_a_repeated_text_is_drafted(kind, name):
    verse = [1, 2, 3, 4, 2, 5, 6, 7, 0, 3] * 4
    decoder = toy_decoder(ToyModel(Script(verse, VOCAB)), KINDS[kind](VOCAB, ToyDrafter(DRAFT)), small(name))
    out = decoder.generate([0], max_new_tokens=len(verse))
    assert out.tokens == verse
    assert sum(out.drafted[20:]) > 10
    assert sum(round_.committed for round_ in out.metrics.rounds) == len(verse)


@pytest.mark.parametrize("name", LOOKUPS)
def test_without_repetitions_a_round_commits_the_bonus_token_alone(name):
    law = Script(list(range(60)), 64)
    out = Decoder(ToyModel(law, 64), LOOKUPS[name](64), Talon()).generate([63], max_new_tokens=50)
    assert out.tokens == list(range(50))
    assert {(round_.nodes, round_.levels, round_.committed) for round_ in out.metrics.rounds} == {(1, 0, 1)}


DRAWING = [
    (PointMass, RAGGED),
    (RRSw, RAGGED),
    (RRS, RAGGED),
    (Block, Chain(depth=2)),
    (GreedyMultiDraft, RAGGED),
]


@pytest.mark.parametrize(("verifier", "policy"), DRAWING, ids=[verifier.__name__ for verifier, _ in DRAWING])
def test_every_proposal_keeps_the_targets_law(verifier, policy):
    prompt = [2, 1, 3, 2, 1, 5, 2, 1]
    decoder = Decoder(ToyModel(LAW), SuffixDrafter(VOCAB), policy, verifier)
    options = {"max_new_tokens": 3, "temperature": 1.0}
    found = [decoder.generate(prompt, seed=seed, **options) for seed in range(200)]
    assert p_value([tuple(out.tokens) for out in found], texts_law()) > SMALL_P
    assert any(any(out.drafted) for out in found)


@pytest.mark.parametrize("temperature", [0.01, 5.0])
@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal, GreedyMultiDraft])
def test_extreme_temperatures_and_filters_do_not_fail(verifier, temperature):
    decoder = toys("suffix", small("talon"), verifier)
    options = {"temperature": temperature, "top_k": 3, "top_p": 0.8, "min_p": 0.1}
    for seed in range(3):
        assert len(decoder.generate(PROMPT * 3, max_new_tokens=24, seed=seed, **options).tokens) == 24
