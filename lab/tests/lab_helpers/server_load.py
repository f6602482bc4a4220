"""Many clients at once: some go away, some send nonsense, and every text is compared with its text alone."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx

from lab_helpers.soak import resident_bytes

COMPLETIONS = "/v1/completions"
LEAVING, MALFORMED = 0.1, 0.05
"""Shares of the requests whose client leaves before it is answered, and that are none."""
LONGEST_STAY = 0.05
"""Seconds after which a client leaves at the latest."""
NONSENSE: list[tuple[bytes, int]] = [
    (b"{", 400),
    (b"[" * 5000, 400),
    (b'{"prompt": "\xff"}', 400),
    (b'{"prompt": [1], "max_tokens": -1}', 400),
    (b'{"prompt": [1], "temperature": NaN}', 400),
    (b'{"prompt": [1], "max_tokns": 1}', 400),
    (b'{"prompt": [5000]}', 400),
    (b'{"prompt": ""}', 400),
    (b'{"prompt": [1], "model": "another"}', 404),
    (b'{"prompt": [1], "max_tokens": 100000}', 400),
    (b'{"prompt": [1], "structured_outputs": {"regex": "("}}', 400),
    (b" " * (5 << 20), 413),
]
"""Bodies, and the status that answers each."""
SAMPLES = 10
"""How often the memory is looked at."""

Texts = dict[int, tuple[str, str | None]]
"""The text and the finish reason of each choice."""


def bodies(count: int, *, vocab: int, seed: int = 0) -> list[dict[str, Any]]:
    """Requests of many kinds, each of which has one right answer."""
    rng = random.Random(seed)
    return [_body(rng, vocab) for _ in range(count)]


def _body(rng: random.Random, vocab: int) -> dict[str, Any]:
    prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
    shapes: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": rng.choice([0.5, 1.0])},
        {"temperature": 1, "top_p": 0.8},
        {"temperature": 1, "top_k": 9, "min_p": 0.02},
        {"temperature": 0, "presence_penalty": 0.5, "repetition_penalty": 1.3},
        {"temperature": 1, "n": 3},
        {"temperature": 0, "stop": rng.sample("abcdefghijklmnopqrstuvwxyz", 4)},
        {"temperature": 0, "logprobs": 2, "echo": True},
        {"temperature": 1, "structured_outputs": {"regex": "[a-e]{2,6}[0-9]{1,9}x?"}},
    ]
    limits = {"max_tokens": rng.randint(1, 20), "seed": rng.randrange(2**31)}
    return {"prompt": prompt, **limits, **rng.choice(shapes)}


@dataclass
class ServerLoad:
    """A run of many requests.

    Args:
        address: of the server.
        bodies: that are asked for again and again.
        at_once: clients.
        seed: of who asks for what, and when they leave.

    Attributes:
        expected: the texts of each body when it is asked for alone.
        statuses: how often each answered.
        left: clients that went away.
        wrong: what should not have happened.
        memory: bytes of this process, in which the server runs too, by turns.
    """

    address: str
    bodies: list[dict[str, Any]]
    at_once: int = 32
    seed: int = 0
    expected: list[Texts] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    wrong: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def run(self, *, requests: int | None = None, seconds: float = float("inf")) -> None:
        """Send so many requests, or for so many seconds."""
        asyncio.run(self._run(requests, seconds))

    async def _run(self, requests: int | None, seconds: float) -> None:
        limits = httpx.Limits(max_connections=self.at_once + 1, max_keepalive_connections=self.at_once)
        async with httpx.AsyncClient(base_url=self.address, limits=limits, timeout=120) as client:
            self.expected = [_texts(await client.post(COMPLETIONS, json=body)) for body in self.bodies]
            self.begun = time.monotonic()
            numbers = islice(self._numbers(seconds), requests)
            self._every = requests and max(requests // SAMPLES, 1)
            await asyncio.gather(*(self._worker(client, numbers) for _ in range(self.at_once)))

    def _numbers(self, seconds: float) -> Iterator[int]:
        """The numbers of the requests; now and then the memory is looked at."""
        number, looked = 0, 0.0
        while (spent := time.monotonic() - self.begun) < seconds and not self.wrong:
            if number % self._every == 0 if self._every else spent - looked > seconds / SAMPLES:
                looked = spent
                self.memory.append(resident_bytes())
                print(f"{spent:6.0f} s: {number} requests, {self.left} left, {self.memory[-1] / 1e6:.1f} MB")
            yield number
            number += 1

    async def _worker(self, client: httpx.AsyncClient, numbers: Iterator[int]) -> None:
        for number in numbers:
            rng = random.Random(f"{self.seed} {number}")
            kind = rng.random()
            if kind < MALFORMED:
                await self._send_nonsense(client, *rng.choice(NONSENSE))
            elif kind < MALFORMED + LEAVING:
                await self._leave(client, rng)
            else:
                await self._ask(client, rng)

    async def _send_nonsense(self, client: httpx.AsyncClient, content: bytes, status: int) -> None:
        headers = {"Content-Type": "application/json"}
        reply = await client.post(COMPLETIONS, content=content, headers=headers)
        self.statuses[reply.status_code] += 1
        if reply.status_code != status or set(reply.json()) != {"error"}:
            self.wrong.append(f"{content[:80]!r} is answered {reply.status_code}: {reply.text[:300]}")

    async def _leave(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Ask for a long text and go away soon, perhaps in the middle of its stream."""
        body = {"prompt": [1, 2], "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": rng.random() < 0.5}
        try:
            async with asyncio.timeout(rng.random() * LONGEST_STAY):
                async with client.stream("POST", COMPLETIONS, json=body) as reply:
                    async for _ in reply.aiter_bytes():
                        pass
        except TimeoutError:
            self.left += 1

    async def _ask(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Ask for a text, as a stream or whole, and compare it."""
        place, stream = rng.randrange(len(self.bodies)), rng.random() < 0.5
        reply = await client.post(COMPLETIONS, json={**self.bodies[place], "stream": stream})
        self.statuses[reply.status_code] += 1
        found = _texts(reply)
        if reply.status_code != 200 or found != self.expected[place]:
            self.wrong.append(
                f"{self.bodies[place]} is answered {reply.status_code}: {found}, not {self.expected[place]}"
            )


def _texts(reply: httpx.Response) -> Texts:
    """The texts of a reply, whole or as a stream."""
    if reply.status_code != 200:
        return {}
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return {choice["index"]: (choice["text"], choice["finish_reason"]) for choice in reply.json()["choices"]}
    found: Texts = {}
    for line in reply.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                text, _ = found.get(choice["index"], ("", None))
                found[choice["index"]] = (text + choice["text"], choice["finish_reason"])
    return dict(sorted(found.items()))
