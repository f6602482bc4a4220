"""What a router is told of the texts that a worker keeps."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafttree.interfaces.dynamo.fleet_settings import FleetSettings
from drafttree.interfaces.dynamo.kept_blocks import KeptBlocks
from testing.dynamo import request, written

SIZE = 3


class Router:
    """What a router knows: the beginning that each name of a block stands for."""

    def __init__(self) -> None:
        self.beginnings: dict[int, tuple[int, ...]] = {}

    def publish_stored(self, *, token_ids, num_block_tokens, block_hashes, parent_hash):
        known = self.beginnings[parent_hash] if parent_hash is not None else ()
        assert sum(num_block_tokens) == len(token_ids)
        for name, size in zip(block_hashes, num_block_tokens, strict=True):
            assert 0 <= name < 2**63
            assert name not in self.beginnings
            known, token_ids = (*known, *token_ids[:size]), token_ids[size:]
            self.beginnings[name] = known

    def publish_removed(self, *, block_hashes):
        for name in block_hashes:
            del self.beginnings[name]


def whole_blocks(texts: list[list[int]], size: int) -> set[tuple[int, ...]]:
    return {tuple(text[:end]) for text in texts for end in range(size, len(text) + 1, size)}


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 1), max_size=10)), max_size=20))
def test_the_router_knows_every_whole_block_of_what_is_kept(steps):
    router, texts = Router(), list[list[int]]()
    blocks = KeptBlocks(router, SIZE)
    for keeps, tokens in steps:
        if keeps or not texts:
            texts.append(tokens)
            blocks.kept(tokens)
        else:
            blocks.forgotten(texts.pop(len(tokens) % len(texts)))
        known = [*router.beginnings.values()]
        assert set(known) == whole_blocks(texts, SIZE)
        assert len(known) == len(set(known))


@pytest.fixture
def worker(fleet_worker, decoder):
    decoder.prefixes.clear()
    settings = FleetSettings("embedded", "mine", "file", "dynamo", max_batch=4, max_kv_tokens=4096, prefix_tokens=100)
    worker = fleet_worker.FleetWorker(decoder, settings, lambda _: None)
    yield worker
    worker.close()
    decoder.prefixes.limit(8192)


def test_a_worker_tells_what_it_keeps_and_forgets(worker, decoder):
    router = Router()
    written(worker, request([*range(5, 45)], max_tokens=4, temperature=0.0))
    (source,) = asyncio.run(worker.kv_event_sources())
    source.on_ready(router)
    assert tuple(range(5, 37)) in router.beginnings.values()  # of what was there before
    written(worker, request([*range(50, 130)], max_tokens=4, temperature=0.0))
    assert {known[0] for known in router.beginnings.values()} == {50}
    assert max(map(len, router.beginnings.values())) == 80
    told = dict(router.beginnings)
    asyncio.run(worker.cleanup())
    decoder.prefixes.clear()
    assert router.beginnings == told
