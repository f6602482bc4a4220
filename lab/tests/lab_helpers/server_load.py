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
PATIENCE = 1200
"""Seconds that a client waits for any part of an answer: far longer than the slowest machine takes, so that what is
found does not depend on what else the machine does."""
SAMPLES = 10
"""How often the memory is looked at."""

ROUTES = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"]
"""Routes that are asked besides the completions."""
SCHEMAS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"type": "integer", "minimum": 10, "maximum": 99999},
    {"enum": [7, 123, 99999, True]},
]
"""Forms that letters and digits spell."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
BEGINNINGS = [LETTERS * 2, LETTERS[::-1] * 2]
"""Texts that many prompts begin with."""

Texts = dict[int, tuple[str, str | None]]
"""The text and the finish reason of each choice."""


@dataclass(frozen=True)
class Asked:
    """A request that has one right answer.

    Attributes:
        path: of the route.
        body: of the request.
    """

    path: str
    body: dict[str, Any]


def asked(count: int, *, vocab: int, seed: int = 0, longer: int = 1) -> list[Asked]:
    """Requests of many kinds; their texts are so many times longer than the shortest kind's, 20 tokens at most."""
    rng = random.Random(seed)
    kinds = (_completion, _completion, _other)
    return [rng.choice(kinds)(rng, vocab, longer * rng.randint(1, 20)) for _ in range(count)]


def _completion(rng: random.Random, vocab: int, limit: int) -> Asked:
    prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, 12))]
    if beginning := rng.choice([0, 0, 3, 5]):
        prompt = [beginning * place % vocab for place in range(40)] + prompt
    shapes: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": rng.choice([0.5, 1.0])},
        {"temperature": 1, "top_p": 0.8},
        {"temperature": 1, "top_k": 9, "min_p": 0.02},
        {"temperature": 0, "presence_penalty": 0.5, "repetition_penalty": 1.3},
        {"temperature": 1, "n": 3},
        {"temperature": 0, "stop": rng.sample(LETTERS, 4)},
        {"temperature": 0, "logprobs": 2, "echo": True},
        {"temperature": 1, "structured_outputs": {"regex": "[a-e]{2,6}[0-9]{1,9}x?"}},
        {"temperature": 1, "structured_outputs": {"json": rng.choice(SCHEMAS)}},
    ]
    limits = {"max_tokens": limit, "seed": rng.randrange(2**31)}
    return Asked(COMPLETIONS, {"prompt": prompt, **limits, **rng.choice(shapes)})


def _other(rng: random.Random, vocab: int, limit: int) -> Asked:
    path, said = rng.choice(ROUTES), "".join(rng.choices(LETTERS, k=12))
    if path == "/tokenize":
        return Asked(path, {"prompt": said})
    told, messages = rng.choice(BEGINNINGS), [{"role": "user", "content": said}]
    form = {"type": "json_schema", "schema": rng.choice(SCHEMAS)}
    named = {"type": "json_schema", "json_schema": {"name": "form", "schema": form["schema"]}}
    body, formed = {
        "/v1/chat/completions": (
            {"messages": [{"role": "system", "content": told}, *messages], "max_tokens": limit},
            {"response_format": named},
        ),
        "/v1/responses": (
            {"instructions": told, "input": said, "max_output_tokens": limit},
            {"text": {"format": {**form, "name": "form"}}},
        ),
        "/v1/messages": (
            {"system": told, "messages": messages, "max_tokens": limit},
            {"output_config": {"format": form}},
        ),
    }[path]
    sampled = {"temperature": rng.choice([0, 1]), "seed": rng.randrange(2**31)}
    return Asked(path, {**body, **sampled, **(formed if rng.random() < 0.3 else {})})


@dataclass
class ServerLoad:
    """A run of many requests.

    Args:
        address: of the server.
        asked: what is asked for again and again.
        at_once: clients.
        seed: of who asks for what, and when they leave.

    Attributes:
        expected: the texts of each request when it is made alone.
        statuses: how often each answered.
        left: clients that went away.
        wrong: what should not have happened.
        memory: bytes of this process, in which the server runs too, by turns.
    """

    address: str
    asked: list[Asked]
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
        async with httpx.AsyncClient(base_url=self.address, limits=limits, timeout=PATIENCE) as client:
            self.expected = [_texts(await client.post(each.path, json=each.body)) for each in self.asked]
            assert all(self.expected)
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
        place, stream = rng.randrange(len(self.asked)), rng.random() < 0.5
        asked = self.asked[place]
        streamed = {"stream": stream} if asked.path != "/tokenize" else {}
        reply = await client.post(asked.path, json={**asked.body, **streamed})
        self.statuses[reply.status_code] += 1
        found = _texts(reply)
        if reply.status_code != 200 or found != self.expected[place]:
            self.wrong.append(f"{asked} is answered {reply.status_code}: {found}, not {self.expected[place]}")


def _texts(reply: httpx.Response) -> Texts:
    """The texts of a reply, whole or as a stream."""
    if reply.status_code != 200:
        return {}
    path = reply.request.url.path
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return _whole_texts(path, reply.json())
    events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    if path == "/v1/responses":
        return _whole_texts(path, events[-1]["response"])
    if path == "/v1/messages":
        text = "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")
        (ended,) = (event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
        return {0: (text, ended)}
    found: Texts = {}
    for choice in (choice for event in events for choice in event["choices"]):
        text, _ = found.get(choice["index"], ("", None))
        added = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        found[choice["index"]] = (text + added, choice["finish_reason"])
    return dict(sorted(found.items()))


def _whole_texts(path: str, body: dict[str, Any]) -> Texts:
    match path:
        case "/v1/responses":
            parts = (part for item in body["output"] for part in item["content"])
            return {0: ("".join(part["text"] for part in parts), body["status"])}
        case "/v1/messages":
            return {0: ("".join(block["text"] for block in body["content"]), body["stop_reason"])}
        case "/tokenize":
            return {0: (str(body["tokens"]), None)}
    return {
        choice["index"]: (choice.get("text") or choice.get("message", {}).get("content") or "", choice["finish_reason"])
        for choice in body["choices"]
    }
