"""transformers' continuous batching on the same module."""

import pytest

import drafttree
from drafttree_lab.load import continuous_batching
from drafttree_lab.load.continuous_batching import describe, generate_batch, steady_rounds, why_not
from testing.toy import ToyModel

TEXTS = ["The old man looked at the sea", "one, two, three, one, two,"]


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(drafter="none", dtype="float32")


def test_it_writes_the_texts_of_plain_decoding(decoder):
    prompts = [decoder.new_request(text).tokens for text in TEXTS]
    expected = decoder.generate(prompts, max_new_tokens=6, temperature=0.0, ignore_eos=True)
    run = generate_batch(decoder, prompts, 6)
    assert run.texts == [each.tokens for each in expected]
    assert 0 < run.steady.committed <= 10
    assert run.steady.seconds < run.seconds


def test_the_steady_state_is_from_the_last_first_token_to_the_first_end():
    times = [[1.0, 2.0, 3.0, 4.0, 5.0], [2.1, 3.1, 4.1, 5.1, 6.1]]
    found = steady_rounds(times)
    assert (found.rounds, found.committed, found.seconds) == (3, 6, pytest.approx(2.9))


def test_texts_that_never_run_together_have_no_steady_state():
    assert steady_rounds([[1.0, 2.0], [3.0, 4.0]]).tokens_per_second == 0


def test_what_keeps_it_from_running_is_said_in_one_line(decoder, monkeypatch):
    def fail(*_):
        raise RuntimeError("no\nkernel")

    assert "temperature 0" in why_not(decoder, [1, 2], 0.7)
    assert "no transformers model" in why_not(decoder.with_target(ToyModel(None)), [1, 2], 0.0)
    monkeypatch.setattr(continuous_batching, "generate_batch", fail)
    assert why_not(decoder, [1, 2], 0.0) == "no kernel"


def test_it_is_named_with_its_attention(decoder):
    assert describe(decoder).startswith("generate_batch of transformers 5.")
    assert describe(decoder).endswith("sdpa attention")
