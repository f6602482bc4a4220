"""What `cached_tokens` and the time of a reply tell of other requests: nothing without their key and salt."""

import pytest
from fastapi.testclient import TestClient

import drafttree
from drafttree.engine.batching import Engine
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import PREFIX_BLOCK as BLOCK
from drafttree.interfaces.server.serving import ServerSettings
from testing.held_server import COMPLETIONS

SECRET = [*range(200, 200 + 3 * BLOCK + 5)]
ROUTES = {
    COMPLETIONS: {"prompt": "The password of the day is a long one, " * 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "The password is a long one, " * 4}]},
    "/v1/responses": {"input": "The password of the day is a long one, " * 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "The password is a long one, " * 4}]},
}


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(drafter="none", dtype="float32")


@pytest.fixture
def client(decoder, request):
    decoder.prefixes.clear()
    with TestClient(create_app(decoder, ServerSettings("embedded", **getattr(request, "param", {})))) as found:
        yield found


def cached(client, prompt=SECRET, key=None, **body) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    asked = {"prompt": prompt, "max_tokens": 1, "temperature": 0, **body}
    reply = client.post(COMPLETIONS, json=asked, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


KEYS = pytest.mark.parametrize("client", [{"api_keys": ("a", "b")}], indirect=True)
CLOSED = pytest.mark.parametrize("client", [{"shares_prefixes": False}], indirect=True)


@KEYS
def test_keys_share_nothing_with_each_other(client):
    assert [cached(client, key=key) for key in ("a", "b", "a", "b")] == [0, 0, 3 * BLOCK, 3 * BLOCK]


@KEYS
def test_a_salt_holds_within_a_key_only(client):
    assert [cached(client, key=key, cache_salt="s") for key in "aba"] == [0, 0, 3 * BLOCK]
    assert cached(client, key="a") == cached(client, key="a", cache_salt="t") == 0


@CLOSED
def test_without_a_key_on_an_open_address_a_salt_alone_shares(client):
    assert [cached(client) for _ in range(3)] == [0, 0, 0]
    assert [cached(client, cache_salt=salt) for salt in "stst"] == [0, 0, 3 * BLOCK, 3 * BLOCK]
    assert cached(client) == 0


@CLOSED
def test_texts_of_one_request_read_their_prompt_once_and_leave_nothing(client, decoder, monkeypatch):
    handles, submit = [], Engine.submit

    def watched(*given, **options):
        handles.append(submit(*given, **options))
        return handles[-1]

    monkeypatch.setattr(Engine, "submit", watched)
    assert cached(client, n=3, temperature=1, seed=1) == 0
    assert sorted(handle.metrics.reused_tokens for handle in handles) == [0, 3 * BLOCK, 3 * BLOCK]
    assert len(decoder.prefixes) == 0


@pytest.mark.parametrize("path", ROUTES)
def test_every_route_takes_a_salt(client, path):
    def hit(**salt: str) -> int:
        reply = client.post(path, json={**ROUTES[path], **salt, "model": "embedded", **limit})
        assert reply.status_code == 200, reply.text
        usage = reply.json()["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
        return details["cached_tokens"] if details else usage["cache_read_input_tokens"]

    limit = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 1}
    assert [hit(), hit(cache_salt="s"), hit(cache_salt="t")] == [0, 0, 0]
    assert hit(cache_salt="s") > 0 == hit(cache_salt="u")


@pytest.mark.parametrize("salt", ["", 7, ["s"]])
def test_what_is_no_salt_is_refused(client, salt):
    reply = client.post(COMPLETIONS, json={"prompt": [1], "cache_salt": salt})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "cache_salt")


def test_within_a_scope_a_secret_is_not_guessed_token_by_token(client):
    """Whoever knows all of a secret but its last tokens learns of none of them before a whole block is right."""
    assert cached(client) == 0
    known = SECRET[: 2 * BLOCK]
    for right in range(BLOCK):
        guess = [*known, *SECRET[2 * BLOCK :][:right], *[7] * (2 * BLOCK - right)]
        assert cached(client, guess) == 2 * BLOCK
    assert cached(client, [*SECRET[: 3 * BLOCK], 7, 7]) == 3 * BLOCK
