"""Connections end where a request does not arrive or a reply is not read, and stay where both goes on."""

import asyncio
import logging
import math
import socket
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest

from drafttree.interfaces.server import body_reading, lifecycle
from drafttree.interfaces.server.lifecycle import Connection
from testing.held_server import COMPLETIONS, LONG, ask, held_server, wait_until

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
SHORT = {**LONG, "max_tokens": 3}


@pytest.fixture
def logged(caplog):
    """What uvicorn logs, which it hands on to nobody, once a server has begun."""
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio")]
    yield lambda: [logger.addHandler(caplog.handler) for logger in loggers] and caplog
    for logger in loggers:
        logger.removeHandler(caplog.handler)


def connect(address: str) -> socket.socket:
    url = urlsplit(address)
    return socket.create_connection((url.hostname, url.port), timeout=20)


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/comp", HEAD, HEAD + b"Content-Length: 100\r\n\r\n", HEAD + b"Content-Length: 100\r\n\r\n{"]
)
def test_a_request_that_does_not_arrive_ends_its_connection(monkeypatch, logged, sent):
    monkeypatch.setattr(lifecycle, "ARRIVAL", 0.2)
    with held_server() as held, connect(held.address) as client:
        log = logged()
        client.sendall(sent)
        assert client.recv(1000) == b""
        wait_until(lambda: not held.admission.busy)
        assert not log.text


@pytest.mark.parametrize(
    "sent",
    [
        b"Content-Length: 501\r\n\r\n",
        b"Content-Length: 501\r\n\r\n{",
        b"Transfer-Encoding: chunked\r\n\r\n1f5\r\n" + b" " * 501 + b"\r\n",
    ],
    ids=["nothing", "a byte", "too many bytes"],
)
def test_a_body_that_is_too_large_is_refused_before_it_is_there(monkeypatch, sent):
    monkeypatch.setattr(body_reading, "DISCARDING", 0.2)
    with held_server(max_body_bytes=500) as held, connect(held.address) as client:
        client.sendall(HEAD + b"Content-Type: application/json\r\n" + sent)
        reply = b"".join(iter(lambda: client.recv(1000), b""))
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"the body has more than 500 bytes" in reply


def test_the_second_request_of_a_connection_must_arrive_too(monkeypatch):
    with held_server() as held, connect(held.address) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        reply = b""
        while b'"ok"' not in reply:
            reply += client.recv(1000)
        monkeypatch.setattr(lifecycle, "ARRIVAL", 0.2)
        client.sendall(b"GET /health HT")
        assert client.recv(1000) == b""


def test_a_request_that_is_there_may_take_longer_to_answer(monkeypatch):
    monkeypatch.setattr(lifecycle, "ARRIVAL", 0.05)
    with held_server() as held, httpx.Client(base_url=held.address) as client:
        assert len(client.post(COMPLETIONS, json={**LONG, "max_tokens": 400}, timeout=20).text) > 400
        held.model.go.clear()
        asking = ask(held.address, **SHORT)
        wait_until(held.model.began.is_set)
        asking.settimeout(0.3)
        with pytest.raises(TimeoutError):
            asking.recv(1)
        held.model.go.set()
        asking.settimeout(20)
        assert b"200 OK" in asking.recv(1000)


@pytest.mark.few(1)
@pytest.mark.parametrize("stream", [True, False])
def test_who_reads_nothing_is_left_and_gives_places_back(monkeypatch, logged, stream):
    monkeypatch.setattr(lifecycle, "UNREAD", 0.2)
    with held_server() as held:
        log = logged()
        with ask(held.address, **{**LONG, "max_tokens": 1500, "n": 4, "logprobs": 20, "stream": stream}):
            wait_until(lambda: held.admission.busy)
            wait_until(lambda: not held.admission.busy)
        assert held.engine.memory.reserved == 0
        assert not log.text


def test_who_reads_by_and_by_stays():
    async def watch() -> None:
        left, aborted = iter([900, 899, 500, 500]), []
        watched = Connection.__new__(Connection)
        watched.loop = SimpleNamespace(call_later=lambda seconds, *called: waiting.append((seconds, *called)))
        watched.transport = SimpleNamespace(
            get_write_buffer_size=lambda: next(left), abort=lambda: aborted.append(True)
        )
        waiting = []
        watched._watch_reading(math.inf)
        for looks in range(3):
            assert not aborted, looks
            seconds, look, before = waiting.pop()
            assert seconds == lifecycle.UNREAD
            look(before)
        assert aborted

    asyncio.run(watch())
