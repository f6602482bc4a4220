"""Requests of an engine that begin alike: what is read once, and that texts are those of a fresh engine."""

import threading
from copy import deepcopy
from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig

import drafttree
from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.engine.batching import Engine
from drafttree.engine.prefixes import BLOCK, PrefixCache
from drafttree.errors import ConfigError
from drafttree.models import TargetModel
from drafttree.policies import Talon
from drafttree.verifiers import Traversal
from testing import families, tiny

SYSTEM = tiny.random_tokens(200, 1)
GREEDY, DRAWN = {"temperature": 0.0}, {"temperature": 1.0, "seed": 7}
HEADS = (
    *("embedded-eagle3", "embedded-hydra", "embedded-medusa", "embedded-draft", "mixed:embedded-eagle3"),
    *("embedded-mtp", "embedded-block"),
)


class Reads:
    """Counts the tokens of prompts that a model reads: those of chains longer than any tree here."""

    def __init__(self, model: TargetModel) -> None:
        self.forward, self.tokens, self.passes = model.forward, 0, 0
        model.forward = self.count

    def count(self, segments, **options):
        self.passes += 1
        self.tokens += sum(segment.nodes for segment in segments if not range(segment.nodes)[segment.wanted])
        return self.forward(segments, **options)


def make(config=None, **options) -> Decoder:
    target = TargetModel(tiny.from_config(config or LlamaConfig(**{**tiny.GROUPED, "max_position_embeddings": 2048})))
    module = deepcopy(target.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return Decoder(target, LanguageModelDrafter(TargetModel(module)), Talon(budget=12), **options)


def alone(decoder: Decoder, prompt: list[int], **options) -> list[int]:
    """The text of a decoder that has kept nothing and keeps nothing."""
    return decoder.generate(prompt, **options, reuse_prefix=False).tokens


def accepted(text) -> list[int]:
    return [turn.accepted for turn in text.metrics.rounds]


def together(engine: Engine, prompts, **options):
    """The texts of prompts that come at the same moment."""
    with engine._thread.changed:
        handles = [engine.submit(prompt, **options) for prompt in prompts]
    return [handle.result(60) for handle in handles]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [GREEDY, DRAWN], ids=["greedy", "coupled"])
def test_users_who_come_together_read_their_system_prompt_once(options):
    decoder = make()
    reads, prompts = Reads(decoder.target), [[*SYSTEM, user, *tiny.random_tokens(5, user)] for user in range(1, 17)]
    with Engine(decoder) as engine:
        found = together(engine, prompts, max_new_tokens=8, **options)
    reused = [text.metrics.reused_tokens for text in found]
    assert reused == [0] + [len(SYSTEM)] * 15
    assert reads.tokens == len(SYSTEM) + 16 * 5
    assert engine.metrics.reused_tokens == sum(reused)
    assert [text.tokens for text in found] == [alone(decoder, each, max_new_tokens=8, **options) for each in prompts]


def test_a_request_that_comes_later_copies_from_one_that_is_still_written():
    decoder = make()
    with Engine(decoder) as engine:
        first = engine.submit([*SYSTEM, 1, 2], max_new_tokens=400, **GREEDY)
        next(iter(first))
        second = engine.submit([*SYSTEM, 3, 4], max_new_tokens=4, **GREEDY).result(60)
        assert not first.done
        first.cancel()
    assert second.metrics.reused_tokens == len(SYSTEM)
    assert second.tokens == alone(decoder, [*SYSTEM, 3, 4], max_new_tokens=4, **GREEDY)


@pytest.mark.parametrize("salts", [("a", "b"), (None, "a"), ((None, "a"), ("a", None))])
def test_a_request_of_another_salt_neither_copies_from_one_that_is_written_nor_waits_for_it(salts):
    decoder = make()
    reads, prompt = Reads(decoder.target), [*SYSTEM, 1]
    with Engine(decoder) as engine:
        with engine._thread.changed:
            handles = [
                engine.submit(prompt, max_new_tokens=8, cache_salt=salt, **GREEDY) for salt in (*salts, salts[0])
            ]
        found = [handle.result(60) for handle in handles]
        later = engine.submit(prompt, max_new_tokens=8, cache_salt=salts[1], **GREEDY).result(60)
    shared = [len(SYSTEM) if salt is None else len(SYSTEM) // BLOCK * BLOCK for salt in salts]
    assert [text.metrics.reused_tokens for text in found] == [0, 0, shared[0]]
    assert found[0].metrics.prefill_passes == found[1].metrics.prefill_passes
    assert later.metrics.reused_tokens == shared[1]
    assert reads.tokens == 4 * len(SYSTEM) - sum(shared)


@pytest.mark.parametrize("salt", [[], {}, ([],)])
def test_a_salt_that_cannot_be_hashed_is_refused(salt):
    with Engine(make()) as engine, pytest.raises(ConfigError, match=r"cache_salt is .*; give what can be hashed"):
        engine.submit([1], cache_salt=salt)


def test_several_texts_of_one_prompt_read_it_once():
    decoder, prompt = make(), [*SYSTEM, 5]
    reads, seeds = Reads(decoder.target), range(4)
    with Engine(decoder) as engine:
        with engine._thread.changed:
            handles = [engine.submit(prompt, max_new_tokens=8, temperature=1.0, seed=seed) for seed in seeds]
        found = [handle.result(60) for handle in handles]
    assert reads.tokens == len(prompt) - 1
    assert [each.metrics.reused_tokens for each in handles] == [0] + [len(prompt) - 1] * 3
    texts = [alone(decoder, prompt, max_new_tokens=8, temperature=1.0, seed=seed) for seed in seeds]
    assert [each.tokens for each in found] == texts


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [GREEDY, DRAWN], ids=["greedy", "coupled"])
def test_twelve_conversations_by_turns_all_go_on_from_their_own_texts(options):
    decoder = make()
    talks = [[*SYSTEM, user, *tiny.random_tokens(20, user)] for user in range(12)]
    with Engine(decoder) as engine:
        for turn in range(4):
            found = together(engine, talks, max_new_tokens=8, **options)
            if turn:
                assert [text.metrics.reused_tokens for text in found] == [len(talk) - 6 for talk in talks]
            for talk, text in zip(talks, found, strict=True):
                assert text.tokens == alone(decoder, talk, max_new_tokens=8, **options)
                talk += [*text.tokens, *tiny.random_tokens(5, turn)]
    assert len(decoder.prefixes) == 12


@pytest.mark.few(1)
@pytest.mark.parametrize("drafter", HEADS)
def test_what_drafters_know_is_shared_with_the_rows(drafter):
    decoder = drafttree.load("embedded", drafter, "eagle:depth=4,budget=12", dtype="float32")
    decoder = decoder.with_costs(decoder.costs())  # else the clock has a say in whether lookup drafts, or the head
    talk = decoder.new_request("The old man looked out of the window, " * 4).tokens
    with Engine(decoder, budget=11) as engine:
        found = together(engine, [[*talk, 5], [*talk, 6], [*talk, 7]], max_new_tokens=12, **GREEDY)
    assert [text.metrics.reused_tokens for text in found[1:]] == [len(talk) - bool(decoder.drafter.hidden_layers)] * 2
    for text, last in zip(found, (5, 6, 7), strict=True):
        fresh = decoder.generate([*talk, last], max_new_tokens=12, **GREEDY)
        assert text.tokens == fresh.tokens
        assert accepted(text) == accepted(fresh)


@pytest.mark.few(1)
@pytest.mark.parametrize("drafter", ["embedded-eagle3", "embedded-mtp", "embedded-block"])
def test_a_text_of_one_token_is_kept_though_no_drafter_has_read_it(drafter):
    decoder, prompt = drafttree.load("embedded", drafter, "talon", dtype="float32"), [*range(100, 140)]
    with Engine(decoder) as engine:
        engine.submit(prompt, max_new_tokens=1, ignore_eos=True).result()
        assert decoder.prefixes.tokens == len(prompt)
        found = engine.submit(prompt, max_new_tokens=16, ignore_eos=True).result()
    assert found.tokens == alone(decoder, prompt, max_new_tokens=16, ignore_eos=True)


@pytest.mark.slow
def test_with_exact_text_texts_are_the_same_in_bfloat16():
    decoder = drafttree.load("embedded", "embedded-eagle3", dtype="bfloat16", exact_text=True)
    talk = decoder.new_request("The old man looked out of the window, " * 8).tokens
    prompts = [[*talk, last] for last in (5, 6, 7)]
    with Engine(decoder) as engine:
        for _ in range(2):
            for options in (GREEDY, DRAWN):
                found = together(engine, prompts, max_new_tokens=16, **options)
                assert [each.tokens for each in found] == [
                    alone(decoder, prompt, max_new_tokens=16, **options) for prompt in prompts
                ]
    assert all(text.metrics.reused_tokens > len(talk) - 4 for text in found)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", sorted(families.hybrids()))
def test_recurrent_models_read_every_prompt(name):
    decoder = make(families.config(name))
    prompts = [[*SYSTEM[:40], user] for user in range(3)]
    with Engine(decoder) as engine:
        found = together(engine, prompts, max_new_tokens=6, **GREEDY)
    assert [text.metrics.reused_tokens for text in found] == [0, 0, 0]
    assert [text.tokens for text in found] == [alone(decoder, each, max_new_tokens=6, **GREEDY) for each in prompts]


def test_verifiers_that_draw_share_in_an_engine_and_not_alone():
    decoder = make(verifier=Traversal)
    prompts = [[*SYSTEM, user] for user in range(3)]
    with Engine(decoder) as engine:
        found = together(engine, prompts, max_new_tokens=6, temperature=1.0, seed=1)
    assert [text.metrics.reused_tokens for text in found] == [0, len(SYSTEM), len(SYSTEM)]
    texts = [decoder.generate(prompts[0], max_new_tokens=6, temperature=1.0, seed=1) for _ in range(2)]
    assert texts[0].tokens == texts[1].tokens
    assert texts[1].metrics.reused_tokens == 0


BLOCKS = [tiny.random_tokens(40, seed) for seed in range(2)]


@given(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=2, max_size=12), st.integers(2, 12))
@settings(deadline=None, max_examples=6)
def test_each_text_reads_what_no_earlier_one_has(blocks, max_batch):
    """All come at once, so some wait for what is being read, and some for a place, beside texts that have ended."""
    decoder = make()
    prompts = [[*chain.from_iterable(BLOCKS[block] for block in each), 50 + n] for n, each in enumerate(blocks)]
    with Engine(decoder, max_batch=max_batch) as engine:
        found = together(engine, prompts, max_new_tokens=3, **GREEDY)
    for place, (own, text) in enumerate(zip(blocks, found, strict=True)):
        read = [earlier[:size] for earlier in blocks[:place] for size in range(1, 5)]
        shared = max((size for size in range(1, len(own) + 1) if own[:size] in read), default=0)
        assert text.metrics.reused_tokens > 40 * shared - 32  # fewer are not waited for
        assert text.tokens == alone(decoder, prompts[place], max_new_tokens=3, **GREEDY)


@pytest.mark.parametrize("option", [{"reuse_prefix": False}, {"prompt_logprobs": 1}])
def test_what_wants_its_whole_prompt_read_neither_waits_nor_copies(option):
    decoder = make()
    with Engine(decoder) as engine:
        found = together(engine, [[*SYSTEM, 1], [*SYSTEM, 2]], max_new_tokens=4, **GREEDY, **option)
    assert [text.metrics.reused_tokens for text in found] == [0, 0]
    assert len(decoder.prefixes) == 0
    with Engine(decoder.with_defaults(reuse_prefix=False)) as engine:
        found = together(engine, [[*SYSTEM, 1], [*SYSTEM, 2]], max_new_tokens=4, **GREEDY)
    assert [text.metrics.reused_tokens for text in found] == [0, 0]


def test_short_beginnings_are_not_waited_for():
    decoder = make()
    passes = Reads(decoder.target)
    with Engine(decoder) as engine:
        together(engine, [[*SYSTEM[:20], 1], [*SYSTEM[:20], 2]], max_new_tokens=1, **GREEDY)
    assert (passes.passes, passes.tokens) == (2, 40)


def test_when_the_request_that_reads_is_cancelled_the_next_one_reads():
    decoder = make()
    forward, reading, goes_on = decoder.target.forward, threading.Event(), threading.Event()

    def held(segments, **options):
        reading.set()
        assert goes_on.wait(60)
        return forward(segments, **options)

    decoder.target.forward = held
    system, prompts = tiny.random_tokens(900, 2), [[*tiny.random_tokens(900, 2), user] for user in range(3)]
    with Engine(decoder) as engine:
        with engine._thread.changed:
            handles = [engine.submit(prompt, max_new_tokens=4, **GREEDY) for prompt in prompts]
        assert reading.wait(60)
        handles[0].cancel()
        goes_on.set()
        found = [handle.result(60) for handle in handles]
    assert found[0].finish_reason == "cancelled"
    assert found[1].metrics.reused_tokens == 0
    assert found[2].metrics.reused_tokens == len(system)
    assert found[1].tokens == alone(decoder, prompts[1], max_new_tokens=4, **GREEDY)


def test_when_the_request_that_reads_fails_the_next_one_reads():
    decoder = make()
    forward, broken = decoder.target.forward, []

    def failing(segments, **options):
        first = segments[0].cache
        if not broken or broken[0] is first:
            broken[:] = [first]
            raise RuntimeError("broken")
        return forward(segments, **options)

    decoder.target.forward = failing
    with Engine(decoder) as engine:
        with engine._thread.changed:
            handles = [engine.submit([*SYSTEM, user], max_new_tokens=4, **GREEDY) for user in range(3)]
        with pytest.raises(RuntimeError, match="broken"):
            handles[0].result(60)
        found = [handle.result(60) for handle in handles[1:]]
    assert [text.metrics.reused_tokens for text in found] == [0, len(SYSTEM)]


def test_kept_texts_make_room_before_a_request_waits():
    decoder = make()
    size = decoder.prepare([*SYSTEM, 1], max_new_tokens=4).task.capacity
    with Engine(decoder, max_kv_tokens=2 * size) as engine:
        for seed in range(4):
            engine.submit(tiny.random_tokens(201, seed), max_new_tokens=4, **GREEDY).result(60)
            assert engine.memory.reserved + decoder.prefixes.tokens <= 2 * size
        assert len(decoder.prefixes) == 2
        together(engine, [tiny.random_tokens(201, 8), tiny.random_tokens(201, 9)], max_new_tokens=4, **GREEDY)
        assert max(turn.batch for turn in engine.metrics.rounds) == 2
        assert engine.metrics.preempted == 0
    assert decoder.prefixes.tokens == 2 * 204


def test_prefix_tokens_bounds_what_an_engine_keeps():
    decoder = make(prefixes=PrefixCache())
    with Engine(decoder, prefix_tokens=300) as engine:
        for seed in range(3):
            engine.submit(tiny.random_tokens(150, seed), max_new_tokens=4, **GREEDY).result(60)
    assert (len(decoder.prefixes), decoder.prefixes.tokens) == (1, 153)
    with Engine(decoder, prefix_tokens=0) as engine:
        assert decoder.prefixes.tokens == 0
        found = together(engine, [[*SYSTEM, 1], [*SYSTEM, 2]], max_new_tokens=4, **GREEDY)
        assert [text.metrics.reused_tokens for text in found] == [0, 0]
    for wrong in (-1, 1.5, True):
        with pytest.raises(ConfigError, match=f"prefix_tokens is {wrong}; it must be a whole number of at least 0"):
            Engine(decoder, prefix_tokens=wrong)
