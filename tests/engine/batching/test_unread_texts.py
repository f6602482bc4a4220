"""A text that nobody reads waits for its reader, lets others have its place, and stays the same text."""

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import islice

import pytest

from drafttree import Decoder
from drafttree.engine.batching import Engine, Handle
from drafttree.errors import ConfigError
from drafttree.policies import Talon
from testing import random_cases
from testing.costs import toy_decoder
from testing.held_model import HeldModel
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter

LENGTH = 40
PROMPT = [1, 2, 3]


@pytest.fixture(scope="module", params=["toy", "llama"])
def decoder(request) -> Decoder:
    if request.param == "toy":
        return toy_decoder(HeldModel(TARGET), ToyDrafter(DRAFT), Talon(width=2, budget=4))
    return toy_decoder(random_cases.target("llama").target, random_cases.drafter("llama", "near"), Talon(budget=4))


@pytest.fixture(scope="module")
def alone(decoder) -> list[int]:
    return decoder.generate(PROMPT, max_new_tokens=LENGTH).tokens


@pytest.fixture
def engine(decoder):
    with Engine(decoder, max_batch=1) as made:
        yield made


def wait_until(true: Callable[[], object]) -> None:
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends, "it does not become true"
        time.sleep(0.002)


def unread(engine: Engine, max_unread: int = 3) -> Handle:
    """A text that waits for its reader."""
    handle = engine.submit(PROMPT, max_new_tokens=LENGTH, max_unread=max_unread)
    wait_until(lambda: handle.full)
    return handle


def test_a_text_waits_until_half_of_what_there_is_was_read(engine, alone):
    handle = unread(engine, 4)
    chunks = iter(handle)
    read = [next(chunks)]
    assert handle.full
    rounds = len(handle.metrics.rounds)
    assert rounds == 4
    read.append(next(chunks))
    wait_until(lambda: len(handle.metrics.rounds) > rounds)
    read += chunks
    assert [token for chunk in read for token in chunk.tokens] == alone


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_number_of_chunks_that_is_none_is_refused_by_name(engine, wrong):
    with pytest.raises(ConfigError, match="max_unread"):
        engine.submit(PROMPT, max_unread=wrong)


def test_a_text_that_waits_lets_another_one_have_its_place(engine, alone):
    handle = unread(engine)
    assert engine.submit(PROMPT, max_new_tokens=LENGTH).result(20).tokens == alone
    assert not handle.done
    assert [token for chunk in handle for token in chunk.tokens] == alone
    assert handle.result(20).tokens == alone
    assert engine.metrics.preempted == 0


@pytest.mark.few(1)
def test_texts_take_turns_where_each_is_read_by_and_by(decoder, alone):
    with Engine(decoder, max_batch=2) as engine:
        handles = [engine.submit(PROMPT, max_new_tokens=LENGTH, max_unread=2) for _ in range(5)]
        texts = [[] for _ in handles]
        while any(map(len, parts := [[*islice(handle, 1)] for handle in handles])):
            for text, part in zip(texts, parts, strict=True):
                text += [token for chunk in part for token in chunk.tokens]
        assert texts == [alone] * 5


def test_whoever_waits_for_the_whole_text_need_not_read_its_chunks(engine, alone):
    assert unread(engine).result(20).tokens == alone

    async def wait() -> list[int]:
        return (await engine.submit(PROMPT, max_new_tokens=LENGTH, max_unread=1)).tokens

    assert asyncio.run(wait()) == alone


def test_an_event_loop_reads_on(engine, alone):
    async def read() -> list[int]:
        handle = engine.submit(PROMPT, max_new_tokens=LENGTH, max_unread=2)
        return [token async for chunk in handle for token in chunk.tokens]

    assert asyncio.run(read()) == alone


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_text_that_waits_can_be_ended(engine, how):
    handle = unread(engine)
    time.sleep(1.2)  # the loop waits for longer where nothing happens
    engine.close() if how == "close" else handle.cancel()
    wait_until(lambda: handle.done)  # asking for its result would wake the loop
    assert handle.result(20).finish_reason == "cancelled"
    assert engine.memory.reserved == 0


def test_an_engine_that_drains_waits_for_the_reader(engine, alone):
    handle = unread(engine)
    chunks = iter(handle)
    first = next(chunks)
    closing = threading.Thread(target=engine.close, kwargs={"drain": True})
    closing.start()
    assert [*first.tokens, *(token for chunk in chunks for token in chunk.tokens)] == alone
    closing.join(20)
    assert not closing.is_alive()
