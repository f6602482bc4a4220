"""What a device gives is read once a round, for all texts."""

import pytest
import torch

import drafttree
from drafttree.core.randomness import SeededRandomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree
from drafttree.core.vocab_ops import argmax, best_tokens
from drafttree.engine import round_loop
from drafttree.engine.round_loop import RoundClock
from drafttree.evaluation.toy_decoder import SteppedEngine
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.grammar import regex
from drafttree.verifiers import Coupled, Greedy

PROMPTS = ["The old keeper told the children that the old keeper", "It was the best of times, it was", "1, 2, 3, 4, 5"]


def texts_of(decoder, *, at_once: bool) -> list[list[int]]:
    options = [{}, {"temperature": 0.8}, {"grammar": regex("[a-z ,]+")}, {"repetition_penalty": 1.2}, {}]
    with SteppedEngine(decoder, max_batch=16) as engine:
        engine._thread._loop._loop.reads_at_once = at_once
        handles = [
            engine.submit(prompt, seed=3, max_new_tokens=24, ignore_eos="grammar" not in own, **own)
            for own in options
            for prompt in PROMPTS
        ]
        engine.run()
        return [handle.result().tokens for handle in handles]


def test_texts_whose_best_tokens_are_read_together_are_the_same(monkeypatch):
    decoder = drafttree.load(dtype="float32").with_costs(TOY_COSTS).with_policy("talon:budget=9,width=3")
    expected = texts_of(decoder, at_once=False)
    reads, greedy = [], []
    verify = Greedy.verify
    monkeypatch.setattr(round_loop, "best_tokens", lambda rows: (reads.append(len(rows)), best_tokens(rows))[1])
    monkeypatch.setattr(Greedy, "verify", lambda *given: (greedy.append(1), verify(*given))[1])
    assert texts_of(decoder, at_once=True) == expected
    assert max(reads) >= 6
    assert greedy  # of texts with a grammar or a penalty


def test_what_a_device_still_takes_for_a_pass_is_the_targets():
    clock = RoundClock()
    clock.seconds = {"target": 0.2, "verify": 0.5}
    clock._pass = type("Timer", (), {"seconds": 0.6})()
    clock.count_wait()
    assert (round(clock.seconds["target"], 9), round(clock.seconds["verify"], 9)) == (0.6, 0.1)
    clock.count_wait()  # once
    assert round(clock.seconds["target"], 9) == 0.6


def test_rows_are_searched_with_their_noise_in_the_bits_of_torch():
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        rows = (torch.randn(9, 150_000, generator=generator) * 8).to(dtype)
        noise = torch.randn(9, 150_000, generator=generator)
        for temperature in (1.0, 0.7, 1.3, 0.01):
            own = Sampling(temperature).process(rows) + noise
            best = best_tokens(rows, lambda row, numbers, t=temperature, noise=noise: numbers / t + noise[row].numpy())
            assert [best(row) for row in range(9)] == argmax(own).tolist()


@pytest.mark.filterwarnings("error")
def test_logits_below_all_numbers_are_impossible_at_any_temperature():
    rows = torch.tensor([[1.0, 2.0, torch.finfo(torch.float32).min]])
    verdict = Coupled(Sampling(0.01)).verify(DraftTree.rooted(0), rows, SeededRandomness(0, 3, rows.device).at(0))
    assert verdict.bonus == 1
