"""Clients that would hold up a server for all others, and plain streams beside them that tell whether they do."""

import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import httpx

from testing.held_server import COMPLETIONS, ask
from testing.live_server import events

CHAT = "/v1/chat/completions"
GREEDY = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
PLAIN = {**GREEDY, "max_tokens": 64, "stream": True}
UNREAD = {**GREEDY, "max_tokens": 1900, "stream": True, "logprobs": 20}
HELD = 6.0
"""Seconds for which streams are left unread."""
CLOSED = 90.0
"""Seconds within which a server must have closed connections whose request does not arrive."""

Answers = Counter[str]


async def post(address: str, path: str, body: dict[str, Any] | bytes, **headers: str) -> str:
    """Send a request; the status that answers it, and the code of an error."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with httpx.AsyncClient(timeout=300, verify=False) as client:
        given = {"Content-Type": "application/json", **headers}
        reply = await client.post(address + path, content=content, headers=given)
    error = {} if reply.status_code == 200 else reply.json()["error"]
    return " ".join(filter(None, [str(reply.status_code), error.get("code")]))


async def post_all(address: str, bodies: Sequence[dict[str, Any] | bytes], path: str = COMPLETIONS) -> Answers:
    """Send requests at once; how often there was each answer."""
    return Counter(await asyncio.gather(*(post(address, path, body) for body in bodies)))


def constrained(**outputs: Any) -> dict[str, Any]:
    """A request for a text of a few tokens that obeys a grammar."""
    return {"prompt": "x", "max_tokens": 4, "structured_outputs": outputs}


def many_optional(count: int, of: int = 0) -> dict[str, Any]:
    """A request for an object with many optional properties, whose grammar takes long."""
    return constrained(json={"type": "object", "properties": {f"p{of}_{n}": {} for n in range(count)}})


async def backtracking(address: str) -> Answers:
    schema = {"type": "object", "properties": {"a" * 40 + "!": {}}, "patternProperties": {"^(a+)+$": {}}}
    return await post_all(address, [constrained(json=schema)])


async def pattern_bounds(address: str) -> Answers:
    patterns = ["^.{0,129}$", "^[A-Za-z0-9_-]{1,256}$", "^.{0,5000}$"]
    schemas = [constrained(json={"type": "string", "pattern": pattern}) for pattern in patterns]
    return await post_all(address, [*schemas, many_optional(2000)])


async def ambiguous_grammars(address: str) -> Answers:
    """Texts whose masks cost more with every token; see `SECONDS_PER_TOKEN` of the constraints."""
    texts = ["root ::= [a-z ] | root root", 'root ::= [a-z ]+ | root root | "(" root ")" | root "," root | ""']
    texts += ['root ::= "" | [a-z ] root [a-z ]']
    patterns = ["([a-z ]{0,500}){0,500}", "(.{0,50}e){0,50}"]
    forms = [*({"grammar": each} for each in texts * 2), *({"regex": each} for each in patterns)]
    written = {"max_tokens": 800, "temperature": 1}
    return await post_all(address, [{**constrained(**form), **written} for form in forms])


async def abandoned_schemas(address: str) -> Answers:
    with ExitStack() as leaving:
        for number in range(8):
            leaving.enter_context(ask(address, **many_optional(800, of=number)))
        await asyncio.sleep(0.5)
    await asyncio.sleep(HELD)
    return Counter({"left": 8})


async def long_prompt(address: str) -> Answers:
    text = "lorem ipsum " * 320_000
    said = [{"role": "user", "content": text}]
    bodies = {
        COMPLETIONS: {"prompt": text},
        CHAT: {"messages": said},
        "/v1/responses": {"input": text},
        "/v1/messages": {"messages": said, "max_tokens": 9},
        "/tokenize": {"prompt": text},
    }
    answers: Answers = Counter()
    for path, body in bodies.items():
        answers[await post(address, path, body)] += 1
    return answers


async def unread_streams(address: str) -> Answers:
    with ExitStack() as leaving:
        for _ in range(24):
            leaving.enter_context(ask(address, **UNREAD))
        await asyncio.sleep(HELD)
    return Counter({"left": 24})


async def foreign_host(address: str) -> Answers:
    return Counter([await post(address, path, {}, Host="evil.example") for path in (COMPLETIONS, "/v1/messages")])


async def half_requests(address: str) -> Answers:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    beginnings = [b"", b"POST /v1/comp", head, head + b"Content-Length: 100\r\n\r\n{"]
    url, loop = urlsplit(address), asyncio.get_running_loop()
    with ExitStack() as leaving:
        clients = [leaving.enter_context(socket.create_connection((url.hostname, url.port))) for _ in range(64)]
        for place, client in enumerate(clients):
            client.sendall(beginnings[place % len(beginnings)])
            client.setblocking(False)
        ended = asyncio.gather(*(loop.sock_recv(client, 1) for client in clients))
        return Counter("closed" for found in await asyncio.wait_for(ended, CLOSED) if found == b"")


async def many_texts(address: str) -> Answers:
    return await post_all(address, [{**GREEDY, "max_tokens": 64, "n": 128}])


async def large_numbers(address: str) -> Answers:
    number = constrained(json={"type": "integer", "maximum": 10**400})
    return await post_all(address, [b'{"prompt": "x", "max_tokens": %s}' % (b"9" * 5000), number])


def listed(path: str, item: bytes, count: int) -> tuple[str, bytes]:
    """A route, and a body for it whose list has many equal items."""
    field = {COMPLETIONS: b"prompt", "/v1/responses": b"input"}.get(path, b"messages")
    return path, b'{"%s": [%s]}' % (field, b",".join([item] * count))


async def large_bodies(address: str) -> Answers:
    """Ten bodies at once, near the limit of bytes, whose objects would take seconds to make or to refuse."""
    text = json.dumps("a" * 3_800_000).encode()
    bodies = [
        listed(CHAT, b"{}", 1_300_000),
        listed("/v1/messages", b"[]", 1_300_000),
        listed("/v1/responses", b'{"role":1}', 350_000),
        listed(COMPLETIONS, b"7", 2_000_000),
        listed(COMPLETIONS, b"[1]", 970_000),
        (CHAT, b'{"messages": %s}' % (b"[" * 2_000_000)),
        (CHAT, b"{%s}" % b",".join(b'"k%d": 0' % place for place in range(320_000))),
        (CHAT, b'{"messages": [{"role": "user", "content": %s}]}' % text.replace(b"aaaaaa", b"\\ud800")),
        (COMPLETIONS, b'{"prompt": "x", "max_tokens": %s}' % (b"9" * 3_800_000)),
        (CHAT, b'{"messages": [{"role": "user", "content": "x"}], "tools": [%s]}' % b",".join([b"{}"] * 1_200_000)),
    ]
    return Counter(await asyncio.gather(*(post(address, path, body) for path, body in bodies)))


async def many_messages(address: str) -> Answers:
    """Ten bodies at once that are within all limits, with more messages than the context could hold."""
    bodies = [listed(path, b'{"role":"user","content":"a"}', 24_000) for path in (CHAT, "/v1/messages") * 5]
    bodies = [(path, body[:-1] + b', "max_tokens": 9}') for path, body in bodies]
    return Counter(await asyncio.gather(*(post(address, path, body) for path, body in bodies)))


class HealthProbe(Thread):
    """Asks for `/health` all the while, in a thread of its own.

    Args:
        address: of the server.

    Attributes:
        seconds: what each answer took.
    """

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address, self._over = address, Event()
        self.seconds: list[float] = []

    def run(self) -> None:
        with httpx.Client(base_url=self._address, timeout=60) as client:
            while not self._over.wait(0.02):
                begun = time.perf_counter()
                assert client.get("/health").status_code == 200
                self.seconds.append(time.perf_counter() - begun)

    def __enter__(self) -> "HealthProbe":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


@dataclass(frozen=True)
class Attack:
    """What hostile clients do to a server.

    Attributes:
        name: what it is.
        act: does it to the server at an address; the answers.
        expected: the answers that there may be, by their beginnings.
    """

    name: str
    act: Callable[[str], Awaitable[Answers]]
    expected: tuple[str, ...]


ATTACKS = [
    Attack("a schema on which a search never ends", backtracking, ("200",)),
    Attack("patterns with bounds, 2,000 properties", pattern_bounds, ("200", "400")),
    Attack("ambiguous grammars, 800 tokens", ambiguous_grammars, ("200", "400")),
    Attack("8 abandoned schemas of 800 properties", abandoned_schemas, ("left",)),
    Attack("prompts of 3.8 MB", long_prompt, ("400",)),
    Attack("24 streams that nobody reads", unread_streams, ("left",)),
    Attack("another Host", foreign_host, ("421",)),
    Attack("64 requests that do not arrive", half_requests, ("closed",)),
    Attack("a request with n=128", many_texts, ("200",)),
    Attack("10 bodies of millions of items", large_bodies, ("400", "413")),
    Attack("10 bodies of 24,000 messages", many_messages, ("400", "413")),
    Attack("numbers of 400 and 5,000 digits", large_numbers, ("400",)),
]


@dataclass
class PlainStreams:
    """Clients that read one stream after the other.

    Args:
        address: of the server.
        clients: how many there are.
    """

    address: str
    clients: int = 8

    async def read(self, requests: int) -> list[float]:
        """Let every client read so many streams; the seconds that each took."""
        seconds: list[float] = []
        await asyncio.gather(*(self._read(iter(range(requests)), seconds) for _ in range(self.clients)))
        return seconds

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[list[float]]:
        """Let the clients read while something else is done, and one stream each behind it; the seconds of all."""
        seconds: list[float] = []
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.clients):
                tasks.create_task(self._read(iter(over.is_set, True), seconds))
            try:
                yield seconds
            finally:
                over.set()
        seconds += await self.read(1)

    async def _read(self, times: Iterator[object], seconds: list[float]) -> None:
        async with httpx.AsyncClient(base_url=self.address, timeout=300, verify=False) as client:
            for _ in times:
                begun = time.perf_counter()
                reply = await client.post(COMPLETIONS, json=PLAIN)
                assert reply.status_code == 200, reply.text
                assert events(reply.text)[-1]["choices"][0]["finish_reason"] == "length"
                seconds.append(time.perf_counter() - begun)


def memory_of(process: int) -> int:
    """Bytes of a process and all that it has started, without those of files: others may read the same weights."""
    with suppress(OSError):  # it has ended
        folder = Path(f"/proc/{process}")
        lines = (folder / "smaps_rollup").read_text().splitlines()
        own = next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))
        started = [child for task in folder.glob("task/*/children") for child in task.read_text().split()]
        return own + sum(memory_of(int(child)) for child in started)
    return 0
