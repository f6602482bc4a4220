"""A fleet on this machine whose worker is killed: nobody who reads a text can tell. `make fleet` runs this."""

import asyncio

import httpx
import pytest

from lab_helpers.fleet import Fleet, Streamed, stream, stream_all
from testing.dynamo import INSTALLED

OPENINGS = ("Once upon a time", "The old man looked at the sea", "She opened the letter and", "It was a dark night")
REQUESTS = [
    {"prompt": opening, "max_tokens": 200, **sampling}
    for opening in OPENINGS
    for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 11})
]
BEGUN = 5
"""Chunks of every stream before a worker is killed."""
ENDED = 60
"""Seconds after which every stream has ended where nobody is left to write it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED, reason="ai-dynamo is not installed: pip install drafttree[dynamo]"),
]


@pytest.fixture
def fleet(tmp_path):
    with Fleet(tmp_path, workers=2) as fleet:
        yield fleet


async def interrupted(fleet: Fleet, *, supervisor: bool) -> list[Streamed]:
    """The streams of all requests, with a worker killed when all of them have begun."""
    streams = [Streamed() for _ in REQUESTS]
    reading = asyncio.create_task(stream_all(fleet.url, REQUESTS, streams))
    while any(len(streamed.times) < BEGUN for streamed in streams) and not reading.done():
        await asyncio.sleep(0.01)
    assert not any(streamed.finish_reason for streamed in streams), "a text ended before the worker was killed"
    fleet.kill(0, supervisor=supervisor)
    await reading
    return streams


async def statuses(fleet: Fleet, seconds: float) -> list[int]:
    """How new requests end, for some seconds."""
    async with httpx.AsyncClient(timeout=60) as client:
        replies = []
        for _ in range(int(seconds / 0.25)):
            body = {"model": "embedded", "prompt": "Once", "max_tokens": 2}
            replies.append(asyncio.create_task(client.post(f"{fleet.url}/completions", json=body)))
            await asyncio.sleep(0.25)
        return [reply.status_code for reply in await asyncio.gather(*replies)]


@pytest.mark.parametrize("supervisor", [False, True], ids=["worker", "worker-and-supervisor"])
def test_texts_and_usages_are_the_same_when_a_worker_is_killed(fleet, supervisor):
    undisturbed = [Streamed() for _ in REQUESTS]
    asyncio.run(stream_all(fleet.url, REQUESTS, undisturbed))
    streams = asyncio.run(interrupted(fleet, supervisor=supervisor))
    equal = sum(one.outcome == other.outcome for one, other in zip(streams, undisturbed, strict=True))
    longest, usual = (max(streamed.gap for streamed in each) for each in (streams, undisturbed))
    print(f"\n{equal} of {len(REQUESTS)} texts and usages are those of undisturbed streams")
    print(f"longest gap {longest:.2f} s, undisturbed {usual:.2f} s")
    assert [streamed.outcome for streamed in streams] == [streamed.outcome for streamed in undisturbed]
    assert all(streamed.usage and streamed.usage["completion_tokens"] for streamed in streams)
    assert fleet.log("frontend").lower().count("recreating stream") >= 1


def test_no_new_request_fails_when_a_worker_is_killed_under_its_supervisor(fleet):
    assert set(asyncio.run(statuses(fleet, 1))) == {200}
    fleet.kill(0, supervisor=False)
    assert set(asyncio.run(statuses(fleet, 12))) == {200}
    assert "killed by SIGKILL; its place in the fleet is free" in fleet.log("worker-0")


def test_with_both_workers_killed_every_stream_ends_and_new_requests_are_answered(fleet):
    """Nobody is left who could write the rest, so clients are told that at once instead of waiting."""
    streams = [Streamed() for _ in REQUESTS]

    async def read() -> list[BaseException | None]:
        async with httpx.AsyncClient(timeout=300) as client:
            pairs = zip(REQUESTS, streams, strict=True)
            reading = [asyncio.create_task(stream(client, fleet.url, *pair)) for pair in pairs]
            while any(len(streamed.times) < BEGUN for streamed in streams):
                await asyncio.sleep(0.01)
            for worker in range(2):
                fleet.kill(worker, supervisor=True)
            return await asyncio.wait_for(asyncio.gather(*reading, return_exceptions=True), ENDED)

    outcomes = asyncio.run(read())
    assert all(isinstance(outcome, AssertionError | httpx.HTTPError) for outcome in outcomes), outcomes
    assert not any(streamed.finish_reason for streamed in streams)
    assert not {200, 500} & set(asyncio.run(statuses(fleet, 1)))
