"""Passes that are recorded before a server's first request."""

import logging

import pytest

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.engine.drafting.measure import TRIAL_COSTS
from drafttree.engine.pass_recording import PROMPT, TOKENS, record_passes
from drafttree.policies import Chain, Talon
from helpers.replays import Replays
from helpers.varlen import packed
from testing import tiny

PROMPTS = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 1]]


def recording_decoder(policy) -> tuple[Decoder, Replays]:
    recorder = Replays()
    target, draft = (packed(tiny.build("llama", seed=seed), recorder) for seed in (0, 1))
    return Decoder(target, LanguageModelDrafter(draft), policy), recorder


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", [Chain(depth=2), Talon(width=3, budget=6)])
def test_batches_like_these_find_their_passes_recorded(policy, caplog):
    caplog.set_level(logging.INFO, "drafttree")
    decoder, recorder = recording_decoder(policy)
    expected = [decoder.plain().generate(prompt, max_new_tokens=12).tokens for prompt in PROMPTS]
    record_passes(decoder, 4, 8192)
    assert recorder.recorded > 0
    assert "PackedSizes" in caplog.text
    caplog.clear()
    trial = decoder.with_costs(TRIAL_COSTS)
    for size in (4, 2):
        trial.generate([[0] * PROMPT] * size, max_batch=size, max_new_tokens=TOKENS, temperature=0, ignore_eos=True)
    assert "PackedSizes" not in caplog.text
    assert [each.tokens for each in decoder.generate(PROMPTS, max_new_tokens=12)] == expected


def test_nothing_is_learned_of_what_is_written_meanwhile():
    decoder, _ = recording_decoder(Chain(depth=2))
    record_passes(decoder, 2, 8192)
    learned = vars(decoder.learned)
    assert not learned["_of_texts"]
    assert not learned["_of_batches"]


def test_where_nothing_is_recorded_nothing_is_written(monkeypatch):
    module = tiny.build("llama")
    decoder = Decoder(tiny.wrap(module)[0])
    monkeypatch.setattr(Decoder, "generate", pytest.fail)
    record_passes(decoder, 4, 8192)
