"""transformers' continuous batching on the same module."""

import pytest

import drafttree
from drafttree_lab.peers import continuous_batching
from drafttree_lab.peers.continuous_batching import describe, generate_batch, why_not
from testing.toy import ToyModel

TEXTS = ["The old man looked at the sea", "one, two, three, one, two,"]


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(drafter="none", dtype="float32")


def test_it_writes_the_texts_of_plain_decoding(decoder):
    prompts = [decoder.new_request(text).tokens for text in TEXTS]
    expected = decoder.generate(prompts, max_new_tokens=6, temperature=0.0, ignore_eos=True)
    texts, times = generate_batch(decoder, prompts, 6)
    assert texts == [each.tokens for each in expected]
    assert all(len(own) == 6 and own == sorted(own) and own[0] > 0 for own in times)


def test_what_keeps_it_from_running_is_said_in_one_line(decoder, monkeypatch):
    def fail(*_):
        raise RuntimeError("no\nkernel")

    assert "not a transformers model" in why_not(decoder.with_target(ToyModel(None)), [1, 2])
    monkeypatch.setattr(continuous_batching, "generate_batch", fail)
    assert why_not(decoder, [1, 2]) == "no kernel"


def test_it_is_named_with_its_attention(decoder):
    assert describe(decoder).startswith("generate_batch of transformers 5.")
    assert describe(decoder).endswith("sdpa attention")
