"""Every reply has the id of its request, which the access log and the errors in the log name too."""

import logging
import re
import socket
import threading
from urllib.parse import urlsplit

import httpx
import openai
import pytest
from fastapi.testclient import TestClient

from drafttree import Decoder
from drafttree.engine.batching import Engine
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.lifecycle import DrainingServer, listen
from drafttree.interfaces.server.lifecycle import address as url
from drafttree.interfaces.server.serving import ServerSettings
from testing.batches import TOKENIZER
from testing.held_server import COMPLETIONS, ask, held_server, wait_until
from testing.live_server import serving
from testing.toy import Table, ToyModel

LAW = Table(len(TOKENIZER), order=1, scale=6)
ASKED = {"prompt": [1, 2], "max_tokens": 3}
MESSAGE = {"model": "toy", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
OWN_ID = re.compile(r"req_[0-9a-f]{32}")


def app(**settings):
    return create_app(Decoder(ToyModel(LAW, LAW.vocab), tokenizer=TOKENIZER), ServerSettings("toy", **settings))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="drafttree.access")
    return lambda: [each.getMessage() for each in caplog.records if each.name == "drafttree.access"]


@pytest.mark.parametrize("given", ["abc-1", "~" * 128, "!"])
def test_the_clients_id_is_given_back(given):
    with TestClient(app()) as client:
        reply = client.post(COMPLETIONS, json=ASKED, headers={"X-Request-Id": given})
        assert reply.headers["x-request-id"] == given
        assert client.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", [None, "", "two words", "a" * 129, "\t", b"\xe9"])
def test_what_is_no_id_is_replaced_by_a_new_one(given):
    headers = {} if given is None else {"X-Request-Id": given}
    with TestClient(app()) as client:
        found = [client.get("/health", headers=headers).headers["x-request-id"] for _ in range(2)]
    assert all(map(OWN_ID.fullmatch, found))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("path", "status", "settings"),
    [("/nowhere", 404, {}), ("/v1/models", 401, {"api_keys": ("k",)}), ("/health", 421, {"allowed_hosts": ("other",)})],
)
def test_refused_requests_have_ids_and_lines_too(lines, path, status, settings):
    with TestClient(app(access_log=True, **settings)) as client:
        reply = client.get(f"{path}?key=secret", headers={"X-Request-Id": "mine"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (status, "mine")
    [line] = lines()
    assert re.fullmatch(rf'testclient "GET {path}" {status} [0-9.]+s mine', line)


def test_a_line_has_no_lines_of_the_clients_own(lines):
    with TestClient(app(access_log=True)) as client:
        client.get("/a%0Ab%20c")
    assert len(lines()) == 1
    assert "/a%0Ab%20c" in lines()[0]


def test_without_the_option_there_are_no_lines(lines):
    with TestClient(app()) as client:
        assert client.post(COMPLETIONS, json=ASKED).is_success
    assert lines() == []


def test_what_fails_unexpectedly_is_found_in_the_log_by_its_id(caplog, lines, monkeypatch):
    def fail(*_, **__):
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Engine, "submit", fail)
    with TestClient(app(access_log=True)) as client:
        reply = client.post(COMPLETIONS, json=ASKED, headers={"X-Request-Id": "mine"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (500, "mine")
    assert "a mistake of ours" not in reply.text
    assert "the request mine failed" in caplog.messages
    assert " 500 " in lines()[0]


def test_a_client_that_goes_away_has_a_line(lines):
    with held_server(access_log=True) as held:
        ask(held.address, **ASKED).close()
        wait_until(lines)
    assert " 499 " in lines()[0]


def test_a_client_that_goes_away_while_it_sends_has_a_line(caplog, lines):
    with held_server(access_log=True) as held:
        url = urlsplit(held.address)
        with socket.create_connection((url.hostname, url.port)) as client:
            client.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{{".encode())
        wait_until(lines)
    assert " 499 " in lines()[0]
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


def test_clients_find_the_ids():
    with serving(app()) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="k", max_retries=0)
        found = client.completions.create(model="toy", prompt=[1], max_tokens=2, extra_headers={"X-Request-Id": "o"})
        assert found._request_id == "o"


@pytest.mark.parametrize("temperature", [0, -1])
def test_anthropics_clients_look_for_another_header(temperature):
    with TestClient(app()) as client:
        reply = client.post("/v1/messages", json={**MESSAGE, "temperature": temperature})
        assert OWN_ID.fullmatch(reply.headers["request-id"])
        assert reply.is_success or reply.json()["request_id"] == reply.headers["request-id"]


@pytest.mark.parametrize(
    ("trusted", "said", "address"),
    [
        ((), "203.0.113.9", "127.0.0.1"),
        (("127.0.0.0/8",), "203.0.113.9", "203.0.113.9"),
        (("127.0.0.0/8",), "2001:db8::9", "2001:db8::9"),
        (("127.0.0.0/8",), 'x "GET /else" 200', "x%20%22GET%20/else%22%20200"),
        (("10.0.0.1",), "203.0.113.9", "127.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_says_whose_request_it_hands_on(lines, trusted, said, address):
    server = DrainingServer(app(access_log=True, trusted_proxies=trusted), print)
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        wait_until(lambda: server.started)
        httpx.get(f"{url(*listener.getsockname()[:2])}/health", headers={"X-Forwarded-For": said})
        server.should_exit = True
        thread.join(20)
    assert lines()[0].startswith(f'{address} "GET /health"')
