"""Handles tell their listeners of every chunk, and end texts for the reason they are given."""

import pytest

from drafttree.engine.batching import Engine
from testing import random_cases
from testing.costs import toy_decoder
from testing.held_model import HeldModel
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter

LENGTH = 24


@pytest.fixture
def target():
    model = HeldModel(TARGET)
    yield model
    model.go.set()


@pytest.fixture
def engine(target):
    with Engine(toy_decoder(target, ToyDrafter(DRAFT))) as made:
        yield made


def test_a_listener_is_called_at_once_with_every_round_and_at_the_end(engine, target):
    target.go.clear()
    handle = engine.submit([1, 2], max_new_tokens=LENGTH)
    seen = []
    handle.listen(lambda: seen.append((len(handle.metrics.rounds), handle.done)))
    assert seen == [(0, False)]
    target.go.set()
    handle.result(20)
    rounds = len(handle.metrics.rounds)
    assert seen == [(0, False), *((number + 1, False) for number in range(rounds)), (rounds, True)]


def test_a_listener_of_a_finished_text_is_called_once(engine):
    handle, seen = engine.submit([1], max_new_tokens=2), []
    handle.result(20)
    handle.listen(lambda: seen.append(handle.done))
    assert seen == [True]


def test_a_text_ends_for_the_reason_that_is_given(engine, target):
    target.go.clear()
    handle = engine.submit([1, 2], max_new_tokens=LENGTH)
    handle.cancel("length")
    target.go.set()
    assert handle.result(20).finish_reason == "length"
    assert len(handle.result().tokens) < LENGTH


def test_prompts_and_what_was_reused_of_them_are_counted():
    with Engine(toy_decoder(random_cases.target("llama").target)) as engine:
        for _ in range(2):
            engine.submit([1, 2, 3, 4], max_new_tokens=6, reuse_prefix=True).result(20)
    assert engine.metrics.prompt_tokens == 8
    assert engine.metrics.reused_tokens == 3  # all but the last token, which is the root of the first tree


def test_trees_with_drafts_are_counted(engine):
    handle = engine.submit([1, 2], max_new_tokens=LENGTH)
    handle.result(20)
    assert engine.metrics.drafts == sum(turn.nodes > 1 for turn in handle.metrics.rounds) > 0


def test_the_share_of_the_cache_in_use_is_known(target):
    with Engine(toy_decoder(target), max_kv_tokens=100) as engine:
        assert engine.kv_cache_usage == 0
        target.go.clear()
        handle = engine.submit([1, 2], max_new_tokens=8)
        target.began.wait(20)
        assert engine.kv_cache_usage == engine.memory.reserved / 100 >= 0.1
        target.go.set()
        handle.result(20)
    assert engine.kv_cache_usage == 0
