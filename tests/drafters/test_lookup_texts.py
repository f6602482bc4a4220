"""Texts drafted by lookup are those of transformers, repeated ones are drafted, and others cost nothing."""

import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import LOOKUPS, LanguageModelDrafter, MixedDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.policies import Talon
from testing import tiny
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, SMALL, VOCAB, small
from testing.toy import Script, ToyDrafter, ToyModel

KINDS = {
    "lookup": lambda vocab, model: PromptLookupDrafter(vocab, max_ngram=3),
    "suffix": lambda vocab, model: SuffixDrafter(vocab),
    "mixed": lambda vocab, model: MixedDrafter(SuffixDrafter(vocab), model),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_policy = pytest.mark.parametrize("name", SMALL)


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
