"""A server ends when its texts have: the first signal drains it, the second one ends it at once."""

import gc
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import cast

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

import drafttree
from drafttree.engine.batching import Handle
from drafttree.errors import ConfigError
from drafttree.interfaces.server import lifecycle
from drafttree.interfaces.server.admission import MAX_UNREAD
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.lifecycle import DrainingServer, address, listen
from drafttree.interfaces.server.serving import ServerSettings
from testing.batches import TOKENIZER
from testing.held_server import COMPLETIONS, LONG, STREAMS, HeldServer, ask, held_app, wait_until
from testing.live_server import named_events, serve_process
from testing.marks import needs_native

GRACE = 60
"""Seconds that no test waits for."""


@pytest.fixture
def running(request):
    """A server in a thread, what it serves, its address, and what it has told."""
    held, told = held_app(grace=getattr(request, "param", GRACE)), []
    with listen("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
        held.address = address(*listener.getsockname()[:2])
        server = DrainingServer(held.app, told.append)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        yield held, server, thread, told
        held.model.go.set()
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def logged(running, caplog):
    """What uvicorn logs, which it hands on to nobody."""
    logger = logging.getLogger("uvicorn.error")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def handles(held: HeldServer) -> list[Handle]:
    """The texts that have been submitted and have not ended."""
    return [text.result() for text in tuple(held.admission._texts) if text.done()]


def waits(held: HeldServer) -> bool:
    """Whether a text waits for its client to read."""
    return any(handle.full for handle in handles(held))


def test_running_texts_finish_while_new_ones_are_refused(running):
    held, server, thread, told = running
    held.model.go.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, held.address + COMPLETIONS, json={**LONG, "max_tokens": 4}, timeout=20)
        wait_until(held.model.began.is_set)
        server.handle_exit(signal.SIGTERM, None)
        refused = httpx.post(held.address + COMPLETIONS, json=LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(f"{held.address}/ready").status_code == 503
        assert httpx.get(f"{held.address}/health").status_code == 200
        wait_until(lambda: told)
        assert thread.is_alive()
        held.model.go.set()
        assert asked.result().json()["usage"]["completion_tokens"] == 4
    thread.join(20)
    assert not thread.is_alive()
    assert told == ["finishing 1 texts; a second signal ends them at once"]
    assert held.engine.closed


def test_a_stream_that_is_read_slowly_is_sent_to_its_end(running):
    held, server, thread, _ = running
    with ask(held.address, **{**LONG, "max_tokens": 400, "stream": True, "logprobs": 20}) as client:
        wait_until(lambda: waits(held))  # more is to be sent than the system keeps for a client that does not read
        server.handle_exit(signal.SIGTERM, None)
        found = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert b"data: [DONE]" in found
    thread.join(20)
    assert not thread.is_alive()


def test_a_stream_is_sent_to_its_end_by_another_server_of_the_application():
    """uvicorn's own, which ends at a signal when all connections have."""
    held = held_app()
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(held.app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        held.model.go.clear()
        with ask(address(*listener.getsockname()[:2]), **{**LONG, "max_tokens": 4, "stream": True}) as client:
            found = client.recv(1)
            server.handle_exit(signal.SIGTERM, None)
            time.sleep(1)  # sse-starlette looks twice a second for streams that it may cut
            held.model.go.set()
            found += b"".join(iter(lambda: client.recv(1 << 16), b""))
        assert b"data: [DONE]" in found
        thread.join(20)


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_that_nobody_reads_waits_with_a_few_rounds_by_every_route(monkeypatch, running, path):
    monkeypatch.setattr(TOKENIZER, "chat_template", "{{ messages[0].content }}")
    held = running[0]
    with ask(held.address, path, **STREAMS[path], stream=True):
        wait_until(lambda: handles(held))
        (handle,) = handles(held)
        wait_until(lambda: handle.full)
        assert len(handle._chunks) <= MAX_UNREAD
        assert not handle.done


@pytest.mark.few(1)
@pytest.mark.parametrize("path", ["/v1/chat/completions", COMPLETIONS])
def test_a_stream_keeps_no_scores_of_what_was_sent(monkeypatch, running, path):
    monkeypatch.setattr(TOKENIZER, "chat_template", "{{ messages[0].content }}")
    scores = {"logprobs": True, "top_logprobs": 2} if "chat" in path else {"logprobs": 2}
    with httpx.stream("POST", running[0].address + path, json={**STREAMS[path], **scores, "stream": True}) as reply:
        lines = reply.iter_lines()
        for _ in range(600):
            next(lines)
        found = [each for each in gc.get_objects() if type(each) is dict]
    scored = sum("bytes" in each and isinstance(each.get("top_logprobs"), list) for each in found)
    scored += sum(len(each["text_offset"]) for each in found if isinstance(each.get("text_offset"), list))
    assert scored < 200


@pytest.mark.parametrize("running", [0.5], indirect=True)
@pytest.mark.parametrize("length", [40, 400], ids=["written", "being written"])
def test_a_client_that_does_not_read_holds_up_a_server_for_its_grace_only(running, length, logged):
    held, server, thread, _ = running
    with ask(held.address, **{**LONG, "max_tokens": length, "stream": True, "logprobs": 20}):
        wait_until(lambda: waits(held) if length > MAX_UNREAD else held.engine.metrics.finished)
        assert held.admission.busy
        server.handle_exit(signal.SIGTERM, None)
        thread.join(20)
    assert not thread.is_alive()
    assert held.engine.closed
    assert not logged.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_text_that_takes_longer_than_the_grace_ends_where_it_is(monkeypatch, running, stream, logged):
    monkeypatch.setattr(lifecycle, "ENDING", GRACE)  # at once, and nobody is left before
    held, server, thread, _ = running
    with ThreadPoolExecutor(1) as pool:
        body = {**LONG, "max_tokens": 10**6, "stream": stream}
        asked = pool.submit(httpx.post, held.address + COMPLETIONS, json=body, timeout=20)
        wait_until(held.model.began.is_set)
        server.handle_exit(signal.SIGTERM, None)
        reply = asked.result()
    if stream:
        told = json.loads(reply.text.splitlines()[-2].removeprefix("data: "))["error"]
    else:
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        told = reply.json()["error"]
    assert (told["code"], told["message"]) == ("shutting_down", "the server is shutting down")
    thread.join(20)
    assert not thread.is_alive()
    assert not logged.text


@pytest.mark.parametrize(("path", "kind"), [("/v1/responses", "response.failed"), ("/v1/messages", "error")])
def test_events_of_a_text_that_takes_longer_than_the_grace_end_with_their_error(monkeypatch, running, path, kind):
    monkeypatch.setattr(lifecycle, "ENDING", GRACE)
    monkeypatch.setattr(TOKENIZER, "chat_template", "{{ messages[0].content }}")
    held, server, thread, _ = running
    with ThreadPoolExecutor(1) as pool:
        body = {**STREAMS[path], "stream": True}
        asked = pool.submit(httpx.post, held.address + path, json=body, timeout=20)
        wait_until(held.model.began.is_set)
        server.handle_exit(signal.SIGTERM, None)
        last = named_events(asked.result().text)[-1]
    assert last["type"] == kind
    assert "the server is shutting down" in json.dumps(last)
    thread.join(20)
    assert not thread.is_alive()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HT", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_half_a_request_holds_up_no_server(running, sent, logged):
    _, server, thread, _ = running
    sent = sent.replace(b"Host: x", b"Host: x\r\nContent-Length: 100")
    with socket.create_connection(server.servers[0].sockets[0].getsockname()) as client:
        client.sendall(sent)
        wait_until(lambda: server.server_state.connections)
        server.handle_exit(signal.SIGTERM, None)
        thread.join(20)
    assert not thread.is_alive()
    assert not logged.text


def test_the_system_takes_little_for_a_client_that_does_not_read():
    with listen("127.0.0.1", 0) as listener, socket.socket() as client:
        listener.listen()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.connect(listener.getsockname())
        writing, _ = listener.accept()
        with writing:
            writing.setblocking(False)
            taken = 0
            with suppress(BlockingIOError):
                while taken < 10 * lifecycle.AHEAD:
                    taken += writing.send(bytes(1000))
        assert taken < 4 * lifecycle.AHEAD


def test_a_server_without_texts_ends_at_once(running):
    _, server, thread, told = running
    server.handle_exit(signal.SIGTERM, None)
    thread.join(20)
    assert not thread.is_alive()
    assert told == []


def test_the_second_signal_ends_texts_where_they_are(running):
    held, server, thread, _ = running
    with ask(held.address, **{**LONG, "max_tokens": 10**6}):
        wait_until(held.model.began.is_set)
        server.handle_exit(signal.SIGTERM, None)
        server.handle_exit(signal.SIGTERM, None)
        thread.join(20)
    assert not thread.is_alive()
    assert held.engine.metrics.cancelled == 1


def test_a_port_in_use_is_refused_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen at http://127.0.0.1:{port}: .*in use; choose another"):
            listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"cannot listen at http://203\.0\.113\.1:80"):
        listen("203.0.113.1", 80)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"quantize": "int8"}, "lossless with respect to the int8 target", marks=needs_native),
        (
            {"verifier": "lossy-typical"},
            "NOT lossless: the verifier lossy-typical does not follow the target's distribution",
        ),
    ],
    ids=str,
)
def test_the_first_line_says_whether_texts_are_lossless(monkeypatch, options, words):
    monkeypatch.setattr(DrainingServer, "run", lambda *_, **__: None)
    monkeypatch.setattr(os, "_exit", lambda status: None)
    told: list[str] = []
    decoder = drafttree.load(drafter="none", dtype="float32", **options)
    with listen("127.0.0.1", 0) as listener, TestClient(create_app(decoder, ServerSettings("mine"))) as client:
        lifecycle.run(cast("FastAPI", client.app), listener, told.append)
        where = address(*listener.getsockname()[:2])
    precision = "float32 with int8 weights" if "quantize" in options else "float32"
    assert told[0] == f"serving mine in {precision} at {where} ({words})"
    assert told[1:] == ["common prefixes of prompts are shared among all requests"]


def test_addresses_are_those_that_browsers_take():
    assert address("127.0.0.1", 80) == "http://127.0.0.1:80"
    assert address("::1", 80) == "http://[::1]:80"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to a child")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_process_under_load_finishes_its_texts_and_exits_with_0(sent):
    process, found = serve_process()
    body = {"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    with httpx.Client(base_url=found, timeout=120) as client, ThreadPoolExecutor(6) as pool:
        alone = client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
        replies = [pool.submit(client.post, COMPLETIONS, json={**body, "stream": place > 2}) for place in range(6)]
        wait_until(lambda: 'num_requests_running{model_name="embedded"} 6' in client.get("/metrics").text)
        process.send_signal(sent)
        wait_until(lambda: client.get("/ready").status_code == 503)
        assert client.post(COMPLETIONS, json=body).status_code == 503
        whole = [reply.result() for reply in replies]
    assert [reply.json()["choices"][0]["text"] for reply in whole[:3]] == [alone] * 3
    assert all(reply.text.rstrip().endswith("data: [DONE]") for reply in whole[3:])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_pattern_on_which_a_search_never_ends_does_not_hold_up_the_server():
    """The server is a process of its own, since a search would hold up the threads of this one too."""
    schema = {"type": "object", "properties": {"a" * 40 + "!": {}}, "patternProperties": {"^(a+)+$": {}}}
    body = {"prompt": "x", "max_tokens": 4, "structured_outputs": {"json": schema}}
    process, found = serve_process()
    try:
        with httpx.Client(base_url=found, timeout=20) as client:
            assert client.post(COMPLETIONS, json=body).status_code == 200
            assert client.get("/health").status_code == 200
    finally:
        process.kill()
        process.communicate()
