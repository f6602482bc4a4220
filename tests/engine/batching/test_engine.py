"""The engine as it is used: handles, many prompts, event loops, ends of all kinds, and what is refused."""

import asyncio
import math
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from drafttree import Chunk
from drafttree.engine.batching import Engine, Handle
from drafttree.errors import ConfigError, ContextError, InputError
from drafttree.verifiers import RRSw
from testing.batches import watch_ends
from tests.helpers.held_engines import LENGTH, PROMPTS, SAMPLED, TREES, engine_threads


async def read(handle: Handle) -> list[Chunk]:
    return [chunk async for chunk in handle]


def test_a_loop_that_is_left_early_can_be_gone_on_with(decoder):
    with Engine(decoder) as engine:
        handle = engine.submit([1], max_new_tokens=LENGTH)
        whole = handle.result(10)
        tokens = [*next(iter(handle)).tokens]
        tokens += [token for chunk in handle for token in chunk.tokens]
    assert tokens == whole.tokens


def test_a_loop_in_an_event_loop_that_is_left_early_can_be_gone_on_with(decoder):
    async def two_loops(handle) -> list[int]:
        tokens = []
        async for chunk in handle:
            tokens += chunk.tokens
            break
        return [*tokens, *(token for chunk in await read(handle) for token in chunk.tokens)]

    with Engine(decoder) as engine:
        handle = engine.submit([1], max_new_tokens=LENGTH)
        whole = handle.result(10)
        assert asyncio.run(two_loops(handle)) == whole.tokens


def test_a_result_is_waited_for_and_given_to_all_who_ask(decoder, target):
    target.go.clear()
    with Engine(decoder) as engine, ThreadPoolExecutor(4) as pool:
        handle = engine.submit([1, 2], max_new_tokens=LENGTH)
        with pytest.raises(TimeoutError, match=r"within 0\.05 seconds; it goes on"):
            handle.result(timeout=0.05)
        assert not handle.done
        waiting = [pool.submit(handle.result, 10) for _ in range(4)]
        target.go.set()
        results = [future.result() for future in waiting]
    assert handle.done
    assert all(result is results[0] or result == results[0] for result in results)
    assert handle.result().tokens == decoder.generate([1, 2], max_new_tokens=LENGTH).tokens


@pytest.mark.parametrize("timeout", ["x", math.nan, True])
def test_a_timeout_that_is_no_number_is_refused(decoder, timeout):
    with Engine(decoder) as engine:
        handle = engine.submit([1, 2], max_new_tokens=LENGTH)
        with pytest.raises(InputError, match=f"timeout is {timeout!r}; give seconds, or None"):
            handle.result(timeout)
        assert handle.result(math.inf).finish_reason == "length"


def test_a_handle_is_awaited_for_its_result(decoder, target):
    async def both(handle) -> list:
        return [await handle, await asyncio.wait_for(handle, 10)]

    target.go.clear()
    with Engine(decoder) as engine:
        handle = engine.submit([1, 2], max_new_tokens=LENGTH)
        threading.Timer(0.05, target.go.set).start()
        assert asyncio.run(both(handle)) == [handle.result(), handle.result()]


def test_a_reader_that_is_interrupted_while_it_waits_lets_others_read(decoder, target):
    async def read_twice(handle) -> list[Chunk]:
        chunks = aiter(handle)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(chunks), 0.05)
        target.go.set()
        return await read(handle)

    target.go.clear()
    with Engine(decoder) as engine:
        handle = engine.submit([1, 2], max_new_tokens=LENGTH)
        chunks = asyncio.run(read_twice(handle))
        assert [token for chunk in chunks for token in chunk.tokens] == handle.result().tokens


def test_the_metrics_of_an_engine_add_up(decoder):
    with Engine(decoder, max_batch=3, budget=6) as engine:
        handles = [engine.submit(prompt, max_new_tokens=LENGTH) for prompt in PROMPTS]
        results = [handle.result(10) for handle in handles]
    metrics = engine.metrics
    assert metrics.tokens == sum(turn.committed for turn in metrics.rounds) == sum(len(each.tokens) for each in results)
    assert metrics.accepted == sum(metrics.accepted_by_position) == sum(sum(each.drafted) for each in results)
    assert metrics.drafted == sum(turn.drafted for turn in metrics.rounds) >= metrics.accepted
    assert sum(turn.prefill_rows for turn in metrics.rounds) == sum(len(prompt) - 1 for prompt in PROMPTS)
    assert all(turn.rows == turn.batch + turn.prefill_rows + turn.drafted for turn in metrics.rounds)
    assert max(turn.batch for turn in metrics.rounds) <= 3
    assert (metrics.finished, metrics.failed, metrics.cancelled, metrics.running, metrics.waiting) == (6, 0, 0, 0, 0)


def test_texts_streamed_at_the_same_time_share_one_engine(decoder, monkeypatch):
    made = []

    class Counted(Engine):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr("drafttree.engine.batching.engine.Engine", Counted)

    async def stream_all() -> list[list[int]]:
        async def stream(prompt) -> list[int]:
            chunks = decoder.astream(prompt, max_new_tokens=LENGTH, **SAMPLED)
            return [token async for chunk in chunks for token in chunk.tokens]

        return await asyncio.gather(*map(stream, PROMPTS))

    texts = asyncio.run(stream_all())
    assert texts == [decoder.generate(prompt, max_new_tokens=LENGTH, **SAMPLED).tokens for prompt in PROMPTS]
    (engine,) = made
    assert max(turn.batch for turn in engine.metrics.rounds) > 1
    assert not engine_threads()


def test_a_large_request_is_not_passed_by_smaller_ones_that_fit(decoder, target, monkeypatch):
    """The memory has room for two small requests or one large one."""
    target.go.clear()
    ended, small = watch_ends(monkeypatch), len([1]) + 8 + TREES.budget
    with Engine(decoder, max_kv_tokens=2 * small) as engine:
        handles = [engine.submit([1], max_new_tokens=size) for size in (8, 8 + small, 8, 8)]
        target.go.set()
    assert ended[:2] == handles[:2]
    assert {*ended[2:]} == {*handles[2:]}
    batches = [turn.batch for turn in engine.metrics.rounds]
    assert batches == sorted(batches)
    assert {*batches} == {1, 2}


def test_cancelling_a_text_that_has_ended_changes_nothing(decoder):
    with Engine(decoder) as engine:
        handle = engine.submit([1, 2], max_new_tokens=LENGTH)
        whole = handle.result(10)
        handle.cancel()
        engine.submit([1], max_new_tokens=2).result(10)
        assert handle.result() == whole
        assert whole.finish_reason == "length"
    assert engine.metrics.cancelled == 0


@pytest.mark.parametrize("name", ["max_batch", "budget", "max_kv_tokens"])
@pytest.mark.parametrize("value", [0, "4", 2.5, True, math.nan], ids=repr)
def test_what_counts_nothing_is_refused(decoder, name, value):
    with pytest.raises(ConfigError, match=f"{name} is {value!r}; it must be a whole number of at least 1"):
        Engine(decoder, **{name: value})
    assert not engine_threads()


def test_an_engine_needs_a_number_of_requests(decoder):
    with pytest.raises(ConfigError, match="max_batch is None; it must be a whole number of at least 1"):
        Engine(decoder, max_batch=None)


def test_what_is_no_decoder_is_refused():
    with pytest.raises(ConfigError, match=r"decoder is 'embedded'; give a Decoder, such as drafttree\.load makes"):
        Engine("embedded")


def test_the_only_row_of_a_tensor_is_a_prompt(decoder):
    with Engine(decoder) as engine:
        written = engine.submit(torch.tensor([[1, 2]]), max_new_tokens=LENGTH).result(10)
        with pytest.raises(InputError, match="these token ids are 2 prompts in one; give a list of them"):
            engine.submit(torch.tensor([[1, 2], [3, 4]]))
    assert written.tokens == decoder.generate([1, 2], max_new_tokens=LENGTH).tokens


def test_a_list_of_prompts_is_not_written_none_at_once(decoder):
    with pytest.raises(ConfigError, match="max_batch is 0; it must be a whole number"):
        decoder.generate(PROMPTS, max_batch=0)


@pytest.mark.parametrize("gap", [0, -1.0, math.nan, "0.2", True, None])
def test_a_gap_that_is_no_time_is_refused(decoder, gap):
    with pytest.raises(ConfigError, match=r"max_token_gap is .*; give seconds above 0, or math\.inf for no limit"):
        Engine(decoder, max_token_gap=gap)


def test_a_budget_for_drawn_trees_is_refused(decoder):
    with pytest.raises(ConfigError, match="a budget of 4 nodes is not possible with RRSw: its trees are drawn"):
        Engine(decoder.with_verifier(RRSw), budget=4)


def test_a_request_that_can_never_fit_says_how_much_it_needs_and_there_is(decoder):
    needed = 2 + 30 + TREES.budget
    with Engine(decoder, max_kv_tokens=needed - 1) as engine:
        message = f"needs {needed} rows of the KV cache .* the engine has {needed - 1}; shorten"
        with pytest.raises(ContextError, match=message):
            engine.submit([1, 2], max_new_tokens=30)
        assert engine.submit([1, 2], max_new_tokens=29).result(10).finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "options", "error", "message"),
    [
        ([99], {}, InputError, "99"),
        ([1.0], {}, InputError, "a token id is a whole number, not 1.0"),
        (["a", "b"], {}, InputError, "submit takes one prompt; call it for each of a list"),
        ([1], {"num_beams": 4}, ConfigError, "num_beams"),
    ],
    ids=str,
)
def test_a_bad_request_is_refused_before_it_runs(decoder, prompt, options, error, message):
    with Engine(decoder) as engine:
        with pytest.raises(error, match=re.escape(message)):
            engine.submit(prompt, **options)
        assert engine.submit([1], max_new_tokens=2).result(10).tokens
    assert engine.metrics.failed == 0


def test_a_handle_is_read_in_one_thread_at_a_time(decoder, target):
    with Engine(decoder) as engine, ThreadPoolExecutor(1) as pool:
        handle = engine.submit([1, 2], max_new_tokens=LENGTH)
        reading = iter(handle)
        first = next(reading)
        for read_too in (lambda: list(handle), lambda: asyncio.run(read(handle))):
            with pytest.raises(InputError, match="being read by another thread or task"):
                pool.submit(read_too).result(10)
        tokens = [*first.tokens, *(token for chunk in reading for token in chunk.tokens)]
        assert tokens == handle.result().tokens
        assert pool.submit(list, handle).result(10) == []


def test_rounds_can_be_read_while_the_engine_runs(decoder):
    with Engine(decoder) as engine:
        handles = [engine.submit(prompt, max_new_tokens=100, ignore_eos=True) for prompt in PROMPTS]
        while not all(handle.done for handle in handles):
            assert sum(turn.committed for turn in engine.metrics.rounds) <= 100 * len(handles)
    assert engine.metrics.latest == engine.metrics.rounds[-1]
    assert len(repr(engine.metrics)) < 1000
