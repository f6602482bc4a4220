"""A server is called by its own names: a page of another site cannot reach it by a name of its own."""

import socket

import pytest
from fastapi.testclient import TestClient

from drafttree.interfaces.server.access import own_names
from testing.held_server import held_app

OWN = ("localhost", "api.example")
ORIGIN = "https://page.example"


@pytest.fixture(scope="module")
def client():
    held = held_app(allowed_hosts=OWN, cors=(ORIGIN,), api_keys=("sesame",))
    with TestClient(held.app, raise_server_exceptions=False) as found:
        yield found


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "api.example", "api.example.", "127.0.0.1", "127.0.0.1:80", "[::1]:80", "10.1.2.3"],
)
def test_its_names_and_addresses_are_answered(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "localhost@evil.example", "[::1", "", "a b"]
)
@pytest.mark.parametrize("path", ["/health", "/v1/models", "/"])
def test_other_names_are_refused_with_the_fix(client, host, path):
    reply = client.get(path, headers={"Host": host, "Authorization": "Bearer sesame"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["type"]) == (421, "host_not_allowed", "invalid_request_error")
    assert f"the host name {host!r} is not allowed; to allow it, start the server" in error["message"]


def test_anthropics_clients_are_refused_in_their_form(client):
    reply = client.post("/v1/messages", headers={"Host": "evil.example", "X-Api-Key": "sesame"}, json={})
    assert reply.status_code == 421
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert reply.json()["request_id"] == reply.headers["request-id"]


def test_no_origin_may_call_by_another_name(client):
    headers = {"Host": "evil.example", "Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    reply = client.options("/v1/completions", headers=headers)
    assert reply.status_code == 421
    assert "access-control-allow-origin" not in reply.headers


def test_any_name_may_be_allowed():
    with TestClient(held_app(allowed_hosts=("*",)).app) as client:
        assert client.get("/health", headers={"Host": "evil.example"}).status_code == 200


def test_a_server_is_called_as_it_listens_and_localhost():
    assert own_names("127.0.0.1") == ("localhost", "127.0.0.1")
    assert own_names("Box.local") == ("localhost", "box.local")
    assert own_names("0.0.0.0") == own_names("::") == ("localhost", socket.gethostname().lower())
