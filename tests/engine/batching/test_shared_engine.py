"""The engine behind `astream`: there is one while somebody streams, whoever is cancelled, and none after that."""

import asyncio
import threading

import pytest

from drafttree import Decoder
from drafttree.engine.batching import Engine
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter, ToyModel


class HeldEngine(Engine):
    """Waits where it is made and where it is closed until it may go on, and counts those that exist."""

    made, closing, go = threading.Event(), threading.Event(), threading.Event()
    alive = most = 0

    def __init__(self, decoder: Decoder) -> None:
        HeldEngine.alive += 1
        HeldEngine.most = max(HeldEngine.most, HeldEngine.alive)
        self.made.set()
        assert self.go.wait(20)
        super().__init__(decoder)

    def close(self, **options) -> None:
        self.closing.set()
        assert self.go.wait(20)
        super().close(**options)
        HeldEngine.alive -= 1


@pytest.fixture
def held(monkeypatch) -> type[HeldEngine]:
    class Held(HeldEngine):
        made, closing, go = threading.Event(), threading.Event(), threading.Event()

    monkeypatch.setattr(HeldEngine, "alive", 0)
    monkeypatch.setattr(HeldEngine, "most", 0)
    monkeypatch.setattr("drafttree.engine.batching.engine.Engine", Held)
    return Held


@pytest.fixture
def decoder() -> Decoder:
    return toy_decoder(ToyModel(TARGET), ToyDrafter(DRAFT))


async def text(decoder: Decoder, length: int = 8) -> list[int]:
    return [token async for chunk in decoder.astream([1, 2], max_new_tokens=length) for token in chunk.tokens]


def test_an_engine_whose_only_user_is_cancelled_while_it_is_made_is_closed(decoder, held):
    async def run() -> None:
        streaming = asyncio.create_task(text(decoder))
        assert await asyncio.to_thread(held.made.wait, 20)
        streaming.cancel()
        await asyncio.sleep(0)
        held.go.set()
        await asyncio.wait([streaming])
        assert streaming.cancelled()

    asyncio.run(run())
    assert (HeldEngine.most, HeldEngine.alive) == (1, 0)


def test_an_engine_has_ended_before_another_one_is_made(decoder, held):
    async def run() -> list[int]:
        held.go.set()
        chunks = decoder.astream([1, 2], max_new_tokens=500)
        await anext(chunks)
        held.go.clear()
        leaving = asyncio.ensure_future(chunks.aclose())
        assert await asyncio.to_thread(held.closing.wait, 20)
        again = asyncio.create_task(text(decoder))
        await asyncio.sleep(0.1)
        held.go.set()
        await leaving
        return await again

    tokens = asyncio.run(run())
    assert (HeldEngine.most, HeldEngine.alive) == (1, 0)
    assert tokens == decoder.generate([1, 2], max_new_tokens=8).tokens
