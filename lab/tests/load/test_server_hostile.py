"""Hostile requests beside plain streams: nobody waits for them, no memory stays behind, and the server ends in time."""

import asyncio
import signal
import statistics
import sys
import time
from contextlib import suppress

import pytest

from drafttree.engine.batching.engine import IDLE_SECONDS
from lab_helpers.hostile import ATTACKS, UNREAD, Attack, HealthProbe, PlainStreams, constrained, memory_of, post_all
from testing.held_server import ask
from testing.live_server import serve_process

TIMES, MORE = 3, 1.0
"""A plain stream takes so many times as long as without the attack and so many seconds more, at most."""
HEALTH = 0.1
"""Seconds that `/health` may take more than without the attack."""
STAYS = 30e6
"""Bytes that may stay behind an attack."""
GRACE = 10.0
"""Seconds from SIGTERM until nothing is served; `MORE` are for the process to end."""
ROW = "{:40} {:32} {:>7} {:>8} {:>7} {:>9} {:>9} {:>9} {:>9}"


@pytest.fixture(scope="module", autouse=True)
def heading():
    print("\n" + ROW.format("", "", "alone", "beside", "limit", "health", "before", "behind", "SIGTERM"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.act.__name__)
def test_a_hostile_request_holds_up_nobody(attack: Attack):
    process, address = serve_process()
    try:
        asyncio.run(measure(attack, process, address))
    finally:
        process.kill()
        _, err = process.communicate()
    assert "Traceback" not in err, err


async def measure(attack: Attack, process, address: str) -> None:
    """Attack a server, print what that does to others, and check it."""
    streams = PlainStreams(address)
    await post_all(address, [constrained(regex="[a-z]{4}")])  # starts what compiles grammars
    await streams.read(1)
    with HealthProbe(address) as quiet:
        alone = statistics.median(await streams.read(3))
    before = await settled_memory(process.pid)
    with HealthProbe(address) as health:
        async with streams.reading() as seconds:
            answers = await attack.act(address)
    beside, behind = max(seconds), await settled_memory(process.pid)
    ended = await seconds_to_end(attack, process, address)

    told = ", ".join(f"{count} x {answer}" for answer, count in answers.items())
    limit = TIMES * alone + MORE
    times = [f"{seconds:.1f} s" for seconds in (alone, beside, limit)]
    healthy, slowest = max(quiet.seconds), max(health.seconds)
    memory = [f"{size / 1e6:.0f} MB" for size in (before, behind)]
    print(ROW.format(attack.name, told, *times, f"{1000 * slowest:.0f} ms", *memory, f"{ended:.1f} s"))
    assert all(answer.startswith(attack.expected) for answer in answers)
    assert beside <= limit
    assert slowest <= healthy + HEALTH
    assert behind - before <= STAYS
    assert process.returncode == 0
    assert ended <= GRACE + MORE


async def settled_memory(process: int) -> int:
    """The memory of an idle server, once it has given back what it does not use."""
    await asyncio.sleep(4 * IDLE_SECONDS)
    return memory_of(process)


async def seconds_to_end(attack: Attack, process, address: str) -> float:
    """The time from SIGTERM to the end, with a stream that nobody reads and the attack still going on."""
    with ask(address, **UNREAD):
        attacking = asyncio.ensure_future(attack.act(address))
        await asyncio.sleep(1)
        begun = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, 120)
        ended = time.perf_counter() - begun
    attacking.cancel()
    with suppress(Exception, asyncio.CancelledError):
        await attacking
    return ended
