"""What stands before the routes: the key, origins, the size of bodies, and errors in one form."""

import json
import re
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

import httpx
import pytest
from fastapi.testclient import TestClient

from testing.held_server import COMPLETIONS, LONG, held_app, held_server

KEY = {"Authorization": "Bearer open sesame"}
SHORT = {**LONG, "max_tokens": 1}
ORIGIN = "https://page.example"


@pytest.fixture(scope="module")
def client():
    held = held_app(api_keys=("sesame",), cors=(ORIGIN,), max_body_bytes=500)
    with TestClient(held.app, raise_server_exceptions=False) as found:
        yield found


@pytest.fixture(scope="module")
def post(client):
    """Posts bytes to the completions."""
    headers = {"Authorization": "Bearer sesame", "Content-Type": "application/json"}
    return lambda content, **changed: client.post(COMPLETIONS, content=content, headers={**headers, **changed})


def error_of(reply) -> dict:
    """The error of a reply, which has its form."""
    body = reply.json()
    assert [*body] == ["error"]
    assert [*body["error"]] == ["message", "type", "param", "code"]
    return body["error"]


@pytest.mark.parametrize("given", [None, "", "sesame", "Basic sesame", "Bearer", "Bearer ", "Bearer sesam", "Bearer é"])
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions", "/v1/none", "/v1", "/tokenize", "/detokenize"])
def test_without_the_key_nothing_is_answered(client, given, path):
    reply = client.get(path, headers={"Authorization": given.encode()} if given is not None else {})
    assert reply.status_code == 401
    assert reply.headers["www-authenticate"] == "Bearer"
    assert error_of(reply)["code"] == "invalid_api_key"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_who_has_the_key_is_answered(client, scheme):
    assert client.get("/v1/models", headers={"Authorization": f"{scheme} sesame"}).status_code == 200


@pytest.mark.parametrize("key", ["sesame", "sesam"])
def test_the_key_may_come_as_anthropics_clients_send_it(client, key):
    reply = client.get("/v1/models", headers={"X-Api-Key": key, "anthropic-version": "2023-06-01"})
    assert reply.status_code == (200 if key == "sesame" else 401)


@pytest.mark.parametrize(
    ("content", "key", "status", "kind"),
    [
        ("{}", "sesam", 401, "authentication_error"),
        (" " * 501, "sesame", 413, "request_too_large"),
    ],
)
def test_errors_of_anthropics_routes_have_its_form(client, content, key, status, kind):
    sent = {"X-Api-Key": key, "Content-Type": "application/json"}
    reply = client.post("/v1/messages", content=content, headers=sent)
    body = reply.json()
    assert (reply.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
    assert [*body["error"]] == ["type", "message"]
    assert reply.headers["request-id"] == body["request_id"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/"])
def test_health_metrics_and_the_page_need_no_key(client, path):
    assert client.get(path).status_code == 200


def test_pages_of_an_allowed_origin_may_call(client):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-other"}
    reply = client.options(COMPLETIONS, headers={"Origin": ORIGIN, **asked})
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == ORIGIN


def test_a_page_may_read_that_its_key_is_wrong(client):
    reply = client.get("/v1/models", headers={"Origin": ORIGIN})
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (401, ORIGIN)


def test_pages_of_other_origins_may_not_call(client):
    reply = client.get("/health", headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in reply.headers


def test_a_body_that_says_it_is_too_large_is_refused(post):
    reply = post(json.dumps({**SHORT, "user": "x" * 500}).encode())
    assert reply.status_code == 413
    assert error_of(reply)["code"] == "body_too_large"


def test_a_body_in_chunks_is_refused_where_it_becomes_too_large(post):
    read = []

    def chunks():
        for number in range(1000):
            read.append(number)
            yield b" " * 100

    reply = post(chunks())
    assert reply.status_code == 413
    assert error_of(reply)["code"] == "body_too_large"


def test_a_server_reads_no_more_of_a_body_than_its_limit():
    with held_server(max_body_bytes=1000) as held:
        sent = 0

        def chunks():
            nonlocal sent
            for _ in range(10**5):
                sent += 10**4
                yield b" " * 10**4

        with suppress(httpx.TransportError):  # the server may hang up while the client still writes
            assert httpx.post(held.address + COMPLETIONS, content=chunks(), timeout=20).status_code == 413
        assert sent < 10**8


def test_a_body_at_the_limit_is_read(post):
    body = json.dumps({**SHORT, "user": ""})
    padded = json.dumps({**SHORT, "user": "x" * (500 - len(body))})
    assert len(padded) == 500
    assert post(padded.encode()).status_code == 200


def test_the_description_has_the_streams_of_all_routes_that_write_texts(client):
    described = client.get("/openapi.json", headers=KEY).json()
    paths = described["paths"]
    streamed = {
        path
        for path, methods in paths.items()
        if "post" in methods and "text/event-stream" in methods["post"]["responses"]["200"]["content"]
    }
    assert streamed == {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
    for path in streamed:
        whole = paths[path]["post"]["responses"]["200"]["content"]["application/json"]
        schema = described["components"]["schemas"][whole["schema"]["$ref"].rpartition("/")[2]]
        package, name = re.match(r"`([a-z.]+)\.([A-Za-z]+)`", schema["description"]).groups()
        if find_spec(package.partition(".")[0]):
            assert hasattr(import_module(package), name)
        assert {"lossless", "lossy", "quantization"} <= schema["properties"].keys()


def test_a_form_of_another_page_is_no_request(post):
    reply = post(json.dumps(SHORT).encode(), **{"Content-Type": "text/plain"})
    assert reply.status_code == 400
    assert "Content-Type: application/json" in error_of(reply)["message"]


def test_a_path_that_is_not_there_is_answered_404(client):
    reply = client.post("/none")
    assert (reply.status_code, error_of(reply)["code"]) == (404, "not_found")


def test_a_method_that_is_not_there_is_answered_405(client):
    reply = client.post("/health")
    assert (reply.status_code, error_of(reply)["code"]) == (405, "method_not_allowed")
    assert reply.headers["allow"] == "GET"


def test_what_nobody_expected_is_logged_and_not_told(monkeypatch, caplog):
    held = held_app()
    monkeypatch.setattr(held.engine, "submit", lambda *_, **__: 1 / 0)
    with TestClient(held.app, raise_server_exceptions=False) as client:
        reply = client.post(COMPLETIONS, json=SHORT)
    assert reply.status_code == 500
    assert error_of(reply)["type"] == "server_error"
    assert "division" not in reply.text
    assert "ZeroDivisionError" in caplog.text
