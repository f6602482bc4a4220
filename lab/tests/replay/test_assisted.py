"""Transformers' assisted generation as a method: its text, and rounds that follow from its passes."""

import pytest

from drafttree.errors import ConfigError
from drafttree.measure.method import Method
from drafttree.measure.method_decoders import make_decoders
from drafttree_lab.replay.assisted import AssistedGeneration

OPTIONS = {"max_new_tokens": 24, "seed": 0, "ignore_eos": True}


@pytest.fixture
def decoder(embedded):
    """The embedded target with its language model as the drafter."""
    method = Method.parse("embedded-draft|chain:depth=5")
    return make_decoders(embedded, [method])[method.spec]


@pytest.fixture
def prompt(decoder):
    return decoder.tokenizer("The history of the railway begins with")["input_ids"]


def test_a_greedy_text_is_the_targets_and_its_rounds_add_up(decoder, prompt):
    text = AssistedGeneration(decoder).generate(prompt, temperature=0.0, **OPTIONS)
    assert text.tokens == decoder.generate(prompt, temperature=0.0, **OPTIONS).tokens
    rounds = text.metrics.rounds
    assert sum(each.committed for each in rounds) == len(text.tokens) == 24
    assert all(each.accepted <= each.levels == each.nodes - 1 for each in rounds)
    assert all(each.draft_passes == each.levels for each in rounds)  # a chain: a pass for each of its tokens
    assert max(each.levels for each in rounds) > 1
    parts = sum(each.seconds for each in rounds)
    assert parts <= text.metrics.seconds
    assert all(0 < each.target_seconds < each.seconds for each in rounds)


def test_a_seed_repeats_a_sampled_text(decoder, prompt):
    writer = AssistedGeneration(decoder)
    texts = [writer.generate(prompt, temperature=1.0, **OPTIONS).tokens for _ in range(2)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 24


def test_another_drafter_than_a_language_model_cannot_assist(embedded):
    with pytest.raises(ConfigError, match="takes a language model as its drafter"):
        AssistedGeneration(embedded.plain())
