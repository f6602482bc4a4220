"""What stands before the routes: the key, origins, the size of bodies, and errors in one form."""

import json
from contextlib import suppress

import httpx
import pytest
from fastapi.testclient import TestClient

from testing.held_server import COMPLETIONS, LONG, held_app, held_server

KEY = {"Authorization": "Bearer open sesame"}
SHORT = {**LONG, "max_tokens": 1}
ORIGIN = "https://page.example"


@pytest.fixture(scope="module")
def client():
    held = held_app(api_key="sesame", cors=(ORIGIN,), max_body_bytes=500)
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


ASKED = {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("content", "key", "status", "kind"),
    [
        ("{}", "sesam", 401, "authentication_error"),
        ("{", "sesame", 400, "invalid_request_error"),
        (" " * 501, "sesame", 413, "invalid_request_error"),
        (json.dumps({**ASKED, "model": "claude"}), "sesame", 404, "not_found_error"),
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


BAD = {
    "no JSON": (b"{", "invalid_json"),
    "no body": (b"", "missing"),
    "invalid UTF-8": (b'{"prompt": "\xff"}', "invalid_utf8"),
    "a list": (b"[]", "model_attributes_type"),
    "half a surrogate pair": (b'{"prompt": "\\ud800"}', "string_unicode"),
    "half a pair as a field": (b'{"prompt": "a", "\\ud800": 1}', "string_unicode"),
    "half a pair in metadata": (b'{"prompt": "a", "metadata": {"a": "\\ud800"}}', "string_unicode"),
    "an unknown field": (b'{"prompt": "a", "prommpt": "a"}', "extra_forbidden"),
    "no number": (b'{"prompt": "a", "temperature": NaN}', "finite_number"),
    "a token id beyond 64 bits": (b'{"prompt": [1, ' + b"9" * 400 + b"]}", "no_token_id"),
    "an empty prompt": (b'{"prompt": ""}', "empty_prompt"),
    "a prompt out of the vocabulary": (b'{"prompt": [97]}', "invalid_value"),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_bad_bodies_are_answered_400_with_what_is_wrong(post, body):
    content, code = body
    reply = post(content)
    assert reply.status_code == 400
    assert error_of(reply)["code"] == code


def test_nesting_that_no_parser_takes_is_answered_400():
    with TestClient(held_app().app, raise_server_exceptions=False) as client:
        deep = b'{"prompt": ' + b"[" * 10**5
        reply = client.post(COMPLETIONS, content=deep, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    assert error_of(reply)["code"] == "invalid_json"


NINES = "9" * 5000


@pytest.mark.parametrize(
    ("path", "content", "place"),
    [
        ("/v1/completions", '{"prompt": "a", "seed": HERE}', "seed"),
        ("/v1/completions", '{"prompt": "a", "temperature": -HERE}', "temperature"),
        ("/v1/completions", '{"seed": 1, "prompt": [[1, 2], [HERE]]}', "prompt.1.0"),
        ("/v1/chat/completions", '{"messages": [], "max_tokens": HERE}', "max_tokens"),
        ("/v1/responses", '{"input": "a", "tools": [{"parameters": {"const": HERE}}]}', "tools.0.parameters.const"),
        ("/v1/messages", '{"max_tokens": HERE}', "max_tokens"),
        ("/tokenize", '{"prompt": HERE}', "prompt"),
        ("/detokenize", '{"tokens": [HERE]}', "tokens.0"),
        ("/v1/playground/rounds", '{"prompt": "a", "max_tokens": HERE}', "max_tokens"),
        ("/v1/completions", "HERE", "the body"),
        ("/v1/completions", '{"prompt": HERE', "the body"),
    ],
)
def test_an_integer_of_too_many_digits_is_named(path, content, place):
    with TestClient(held_app().app, raise_server_exceptions=False) as client:
        sent = content.replace("HERE", NINES)
        reply = client.post(path, content=sent, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert message == f"{place}: this is an integer of more than 4300 digits, which is not read"


@pytest.mark.parametrize(
    ("path", "content", "place"),
    [
        ("/v1/completions", '{"prompt": "a", "max_tokens": HERE}', "max_tokens"),
        ("/v1/completions", '{"prompt": "a", "top_k": HERE}', "top_k"),
        ("/v1/completions", '{"prompt": "a", "stop_token_ids": [HERE]}', "stop_token_ids.0"),
        ("/v1/chat/completions", '{"messages": [{"role": "user", "content": "a"}], "max_tokens": HERE}', "max_tokens"),
        ("/v1/responses", '{"input": "a", "max_output_tokens": HERE}', "max_output_tokens"),
        ("/v1/messages", '{"messages": [{"role": "user", "content": "a"}], "max_tokens": HERE}', "max_tokens"),
        ("/detokenize", '{"tokens": [HERE]}', "tokens.0"),
        ("/v1/playground/rounds", '{"prompt": "a", "max_tokens": HERE}', "max_tokens"),
    ],
)
def test_an_integer_that_no_machine_word_holds_is_named_and_not_repeated(path, content, place):
    with TestClient(held_app().app, raise_server_exceptions=False) as client:
        sent = content.replace("HERE", NINES[:4300])
        reply = client.post(path, content=sent, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == f"{place}: Input should be less than {2**63}"


def test_the_description_has_the_streams_of_all_routes_that_write_texts(client):
    paths = client.get("/openapi.json", headers=KEY).json()["paths"]
    streamed = {
        path
        for path, methods in paths.items()
        if "post" in methods and "text/event-stream" in methods["post"]["responses"]["200"]["content"]
    }
    assert streamed == {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
    for path in streamed:
        whole = paths[path]["post"]["responses"]["200"]["content"]["application/json"]
        assert "$ref" in whole["schema"]


def test_half_a_surrogate_pair_has_no_tokens():
    with TestClient(held_app().app, raise_server_exceptions=False) as client:
        headers = {"Content-Type": "application/json"}
        reply = client.post("/tokenize", content=b'{"prompt": "\\ud800"}', headers=headers)
    assert (reply.status_code, error_of(reply)["code"]) == (400, "string_unicode")
    assert "prompt holds half a surrogate pair" in error_of(reply)["message"]


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
