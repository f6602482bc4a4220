"""A server ends when its texts have: the first signal drains it, the second one ends it at once."""

import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

import drafttree
from drafttree.core.errors import ConfigError
from drafttree.interfaces.server import lifecycle
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.lifecycle import DrainingServer, address, listen
from drafttree.interfaces.server.serving import ServerSettings
from helpers.held_server import COMPLETIONS, LONG, ask, held_app, wait_until
from helpers.live_server import serve_process


@pytest.fixture
def running():
    """A server in a thread, what it serves, its address, and what it has told."""
    held, told = held_app(), []
    with listen("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is
        held.address = address(*listener.getsockname()[:2])
        server = DrainingServer(uvicorn.Config(held.app, log_level="warning"), held.admission, told.append)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        yield held, server, thread, told
        held.model.go.set()
        server.should_exit = True
        thread.join(20)


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
    assert told == ["finishing 1 texts; a second signal ends them where they are"]
    assert held.engine.closed


def test_a_stream_that_is_read_slowly_is_sent_to_its_end(running):
    held, server, thread, _ = running
    with ask(held.address, **{**LONG, "max_tokens": 400, "stream": True, "logprobs": 20}) as client:
        wait_until(lambda: held.engine.metrics.finished)
        assert held.admission.busy  # more is to be sent than the system keeps for a client that does not read
        server.handle_exit(signal.SIGTERM, None)
        found = b"".join(iter(lambda: client.recv(1 << 16), b""))
    assert b"data: [DONE]" in found
    thread.join(20)
    assert not thread.is_alive()


def test_a_client_that_does_not_read_holds_up_a_server_for_a_while_only(running, monkeypatch):
    held, server, thread, _ = running
    monkeypatch.setattr(lifecycle, "PATIENCE", 0.3)
    server.config.timeout_graceful_shutdown = 0.3
    with ask(held.address, **{**LONG, "max_tokens": 400, "stream": True, "logprobs": 20}):
        wait_until(lambda: held.engine.metrics.finished)
        server.handle_exit(signal.SIGTERM, None)
        time.sleep(0.2)
        assert not server.should_exit
        assert held.admission.busy
        thread.join(20)
        assert not thread.is_alive()


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "lossless"),
        ({"quantize": "int8"}, "lossless with respect to the int8 target"),
        (
            {"lossy_window": 64, "sinks": 0},
            "NOT lossless: lossy_window lets the target attend to the last 64 tokens only",
        ),
        (
            {"verifier": "lossy-typical"},
            "NOT lossless: the verifier lossy-typical does not follow the target's distribution",
        ),
    ],
    ids=str,
)
def test_the_first_line_says_whether_texts_are_lossless(monkeypatch, options, words):
    monkeypatch.setattr(DrainingServer, "run", lambda *_, **__: None)
    told: list[str] = []
    decoder = drafttree.load(drafter="none", dtype="float32", **options)
    with listen("127.0.0.1", 0) as listener, TestClient(create_app(decoder, ServerSettings("mine"))) as client:
        lifecycle.run(cast("FastAPI", client.app), listener, told.append)
        where = address(*listener.getsockname()[:2])
    precision = "float32 with int8 weights" if "quantize" in options else "float32"
    assert told == [f"serving mine in {precision} at {where} ({words})"]


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
