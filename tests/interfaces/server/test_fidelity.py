"""Every reply says whether its texts are lossless, and why not: whole ones and all chunks of a stream."""

import pytest
from fastapi.testclient import TestClient

import drafttree
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from testing.live_server import OWN, events, named_events
from testing.marks import needs_native

TEXT = {"max_tokens": 3, "temperature": 0.8, "seed": 1}
BODIES = {
    "completions": {"prompt": "Once upon", **TEXT},
    "chat/completions": {"messages": [{"role": "user", "content": "Hello"}], **TEXT},
}
EVENT_BODIES = {
    "responses": {"input": "Hello", "max_output_tokens": 3},
    "messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3},
}
FIELDS = [
    pytest.param({"quantize": "int8"}, {"lossless": True, "quantization": "int8"}, marks=needs_native),
    (
        {"verifier": "lossy-typical"},
        {"lossless": False, "lossy": "the verifier lossy-typical does not follow the target's distribution"},
    ),
]


@pytest.mark.few(1)
@pytest.mark.parametrize(("options", "fields"), FIELDS, ids=str)
def test_replies_and_chunks_say_it(options, fields):
    decoder = drafttree.load("embedded", "lookup", "chain", dtype="float32", **options)
    with TestClient(create_app(decoder, ServerSettings("embedded"))) as client:
        for route, body in BODIES.items():
            assert said(client.post(f"/v1/{route}", json=body).json()) == fields
            streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
            chunks = events(client.post(f"/v1/{route}", json=streamed).text)
            assert len(chunks) > 2
            assert all(said(chunk) == fields for chunk in chunks)
        for route, body in EVENT_BODIES.items():
            assert said(client.post(f"/v1/{route}", json=body).json()) == fields
            streamed = named_events(client.post(f"/v1/{route}", json={**body, "stream": True}).text)
            replies = [event.get("response") or event.get("message") for event in streamed]
            assert replies[0] is not None
            assert all(said(reply) == fields for reply in replies if reply)


def test_they_are_documented_in_the_schema():
    app = create_app(drafttree.load(drafter="none", dtype="float32"), ServerSettings("embedded"))
    with TestClient(app) as client:
        schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for kind in ("Completion", "ChatCompletion", "ModelResponse", "MessageReply"):
        assert schemas[kind]["properties"].keys() >= OWN
        assert "lossless" in schemas[kind]["required"]


def said(reply: dict) -> dict:
    return {name: value for name, value in reply.items() if name in OWN - {"timings"}}
