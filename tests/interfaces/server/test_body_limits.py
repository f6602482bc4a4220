"""Large bodies: counted before they are parsed, read beside the event loop, and refused at the first mistake."""

import asyncio
import gc
import gzip
import json
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from drafttree import Decoder
from drafttree.interfaces.server import body_reading
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.body_reading import (
    BODIES_AT_ONCE,
    BYTES,
    ITEMS,
    ITEMS_PER_TOKEN,
    LARGE_BODIES,
    SMALL,
    ItemCount,
)
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import knowing
from testing.held_server import COMPLETIONS, LONG, held_app, held_server, wait_until
from testing.toy import Table, ToyModel

ROUTES = {
    "/v1/chat/completions": b'"messages"',
    "/v1/completions": b'"prompt"',
    "/v1/responses": b'"input"',
    "/v1/messages": b'"messages"',
    "/v1/messages/count_tokens": b'"messages"',
    "/tokenize": b'"messages"',
    "/detokenize": b'"tokens"',
    "/v1/playground/rounds": b'"messages"',
}
SHORT = {**LONG, "max_tokens": 1}
MOST_ITEMS = ITEMS + ITEMS_PER_TOKEN * (1 << 17)
"""Of a body where the model's context has no end; lists and objects count, too."""
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
}
TEXT, CALL = {"type": "text", "text": "x"}, {"id": "c", "type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "f"}}
SAMPLED = {"stop": ["x"], "stop_token_ids": [1], "logit_bias": {"1": 1}}
TABLES = ("logit_bias", "metadata")
"""Fields of objects whose names are free."""
WHOLE = {
    "/v1/chat/completions": {
        **SAMPLED,
        "messages": [{"role": "user", "content": [TEXT]}, {"role": "assistant", "content": "x", "tool_calls": [CALL]}],
        "tools": [NAMED],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}},
        "modalities": ["text"],
        "metadata": {"a": "b"},
    },
    "/v1/completions": {**SAMPLED, "prompt": ["x"], "structured_outputs": {"choice": ["x"]}},
    "/v1/responses": {
        **SAMPLED,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        ],
        "tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        "include": ["x"],
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        **SAMPLED,
        "max_tokens": 1,
        "system": [TEXT],
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [TEXT]}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "stop_sequences": ["x"],
    },
    "/tokenize": {"messages": [{"role": "user", "content": [TEXT]}], "tools": [NAMED]},
    "/detokenize": {"tokens": [1]},
}
"""By route, a body with every list and table that it may have."""
JSON_TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('",:[]{}\\é\ud83d\ude00a\n'),
    lambda each: st.lists(each) | st.dictionaries(st.text('",:[]{}\\é'), each),
)


@pytest.fixture(scope="module")
def held():
    return held_app()


@pytest.fixture(scope="module")
def post(held):
    """Posts bytes to a path."""
    with TestClient(held.app, raise_server_exceptions=False) as client:
        kind = "Content-Type", "application/json"
        yield lambda path, content, *headers: client.post(path, content=content, headers=[kind, *headers])


def listed(field: bytes, item: bytes, count: int) -> bytes:
    """A body with a list of equal items."""
    return b"{" + field + b": [" + b",".join([item] * count) + b"]}"


def items_of(value: object) -> int:
    """What a value's lists and objects hold, and themselves; an empty one counts as it would with one item."""
    parts = [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if parts is None else max(len(parts), 1) + sum(map(items_of, parts))


def count(parts: list[bytes]) -> int:
    counted = ItemCount()
    for part in parts:
        counted.add(part)
    return counted.items


@given(JSON_TEXTS, st.booleans(), st.integers(1, 9), st.sampled_from([None, 2]))
def test_items_are_counted_as_the_parsed_text_has_them_however_it_arrives(value, escaped, size, indent):
    text = json.dumps(value, ensure_ascii=escaped, indent=indent).encode("utf-8", "surrogatepass")
    assert count([text[place : place + size] for place in range(0, len(text), size)]) == items_of(value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_no_other_encoding_hides_items(encoding):
    text = '{"messages": ["\u2200", ' + ", ".join(["{}"] * 500) + "]}"
    whole = text.encode(encoding)
    assert count([whole]) >= 1000
    assert count([whole[:1], whole[1:]]) >= 1000


def test_a_deep_and_long_body_takes_no_more_memory_than_its_text(post):
    path = "/v1/chat/completions"
    deep = b'{"x": ' + b"[" * 900 + b",".join([b"1"] * 70_000) + b"]" * 900 + b"}"
    post(path, b'{"x": 1}')
    tracemalloc.start()
    try:
        reply = post(path, deep)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x")
    assert most < 20e6


@pytest.mark.few(15)
@pytest.mark.parametrize(("path", "field"), ROUTES.items())
@pytest.mark.parametrize("item", [b"{}", b"[]", b"1", b'""', b'"[{,"'])
def test_a_body_with_too_many_items_is_refused_before_it_is_parsed(post, monkeypatch, path, field, item):
    monkeypatch.setattr(body_reading, "_read", lambda *_: pytest.fail("it is parsed"))
    reply = post(path, listed(field, item, MOST_ITEMS))
    assert reply.status_code == 413
    error = reply.json()["error"]
    assert "items in its lists and objects, which is the limit; send less at once" in error["message"]


@pytest.mark.parametrize(("item", "status"), [(b"1,", 413), (b"[{,", 200)], ids=["items", "a string"])
def test_items_are_counted_over_all_parts_of_a_body_and_what_strings_hold_is_none(item, status):
    prompt = item * MOST_ITEMS + b"1" if status == 413 else b'"%s"' % (item * MOST_ITEMS)
    with held_server() as held:
        body, headers = b'{"prompt": [%s], "max_tokens": 1}' % prompt, {"Content-Type": "application/json"}
        reply = httpx.post(held.address + COMPLETIONS, content=body, headers=headers, timeout=60)
    assert reply.status_code == status


def places_of(value: object, place: tuple = ()) -> Iterator[tuple]:
    """The places of all lists and tables in a body."""
    if isinstance(value, list) or (place and place[-1] in TABLES):
        yield place
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in steps:
        yield from places_of(part, (*place, step))


def with_value(body: Any, place: tuple, value: object) -> Any:
    """A body with another value at a place."""
    if not place:
        return value
    step, *others = place
    changed = with_value(body[step], tuple(others), value)
    return body | {step: changed} if isinstance(body, dict) else [*body[:step], changed, *body[step + 1 :]]


@pytest.mark.parametrize(
    ("path", "place"), [(path, place) for path, body in WHOLE.items() for place in places_of(body)]
)
def test_a_list_or_a_table_is_checked_up_to_its_first_mistake(post, monkeypatch, path, place):
    counts, refuse = [], body_reading.refusal_of

    def note(first):
        error = sys.exc_info()[1]
        assert isinstance(error, ValidationError)
        counts.append(error.error_count())
        return refuse(first)

    monkeypatch.setattr(body_reading, "refusal_of", note)
    wrong = {f"{number}": ["no"] for number in range(2000)} if place[-1] in TABLES else [{"no": 1}] * 2000
    reply = post(path, json.dumps(with_value(WHOLE[path], place, wrong)).encode())
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(".".join(map(str, place)))
    assert max(counts) < 10


@pytest.mark.few(2)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_one_of_many_unknown_fields_is_told(post, path):
    reply = post(path, json.dumps({f"field{number}": 1 for number in range(30_000)}).encode())
    assert reply.status_code == 400
    body = json.dumps({**BODIES[path], **{f"field{number}": 1 for number in range(30_000)}}).encode()
    assert "field0: there is no such field" in post(path, body).json()["error"]["message"]


@pytest.mark.parametrize("coding", ["gzip", "zstd", "identity, gzip"])
def test_a_compressed_body_is_refused_by_the_name_of_its_coding(post, coding):
    headers = [("Content-Encoding", each) for each in coding.split(", ")]
    reply = post("/v1/completions", gzip.compress(json.dumps(BODIES["/v1/completions"]).encode()), *headers)
    assert reply.status_code == 415
    assert f"the Content-Encoding '{coding}', which is not read; send it" in reply.json()["error"]["message"]


@pytest.mark.parametrize("coding", ["identity", "Identity", ""])
def test_a_body_that_says_it_is_not_compressed_is_read(post, coding):
    reply = post(COMPLETIONS, json.dumps(SHORT).encode(), ("Content-Encoding", coding))
    assert reply.status_code == 200


@pytest.mark.parametrize(("size", "beside"), [(0, False), (SMALL, True)])
def test_a_large_body_is_read_beside_the_event_loop(post, monkeypatch, size, beside):
    on_loop, read = [], body_reading._read

    def note(*given):
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            on_loop.append(True)
        return read(*given)

    monkeypatch.setattr(body_reading, "_read", note)
    assert post(COMPLETIONS, json.dumps({**SHORT, "user": "x" * size}).encode()).status_code == 200
    assert on_loop == ([] if beside else [True])


def test_few_large_bodies_are_read_at_a_time_and_all_of_them_are_answered(monkeypatch):
    reading, most, lock, read = 0, 0, threading.Lock(), body_reading._read

    def note(*given):
        nonlocal reading, most
        with lock:
            reading += 1
            most = max(most, reading)
        try:
            time.sleep(0.02)
            return read(*given)
        finally:
            with lock:
                reading -= 1

    monkeypatch.setattr(body_reading, "_read", note)
    right, wrong = ({**SHORT, "user": "x" * SMALL, "max_tokens": count} for count in (1, -1))
    with held_server() as held, ThreadPoolExecutor(12) as clients:
        asked = [right, wrong] * 6
        replies = [*clients.map(lambda body: httpx.post(held.address + COMPLETIONS, json=body, timeout=20), asked)]
    assert [reply.status_code for reply in replies] == [200, 400] * 6
    assert most == LARGE_BODIES


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {**LONG, "max_tokens": 4, "user": "x" * SMALL}),
        ("/v1/playground/rounds", {"prompt": "x", "max_tokens": 4, "user": "x" * SMALL}),
    ],
)
def test_texts_that_are_written_keep_no_large_body_waiting(path, body):
    with held_server() as held, ThreadPoolExecutor(4) as clients:
        held.model.go.clear()
        writing = [clients.submit(httpx.post, held.address + path, json=body, timeout=20) for _ in range(4)]
        wait_until(lambda: held.admission.open == 4)
        held.model.go.set()
        assert all(each.result().status_code == 200 for each in writing)


def test_the_bytes_of_all_bodies_that_arrive_are_bounded():
    most = 4000
    with held_server(max_body_bytes=most) as held, ExitStack() as leaving:
        url = urlsplit(held.address)
        for _ in range(BODIES_AT_ONCE + 2):
            connection = leaving.enter_context(socket.create_connection((url.hostname, url.port)))
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {most}\r\n\r\n".encode() + b" " * (most - 1))
        wait_until(lambda: httpx.post(held.address + COMPLETIONS, json=SHORT).status_code == 429)
        reply = httpx.post(held.address + COMPLETIONS, json=SHORT)
        assert reply.headers["retry-after"] == "1"
        assert "the bodies of all requests take" in reply.json()["error"]["message"]
        leaving.close()
        wait_until(lambda: httpx.post(held.address + COMPLETIONS, json=SHORT).status_code == 200)


@pytest.mark.slow
def test_a_context_full_of_token_ids_is_no_large_body():
    with TestClient(held_app().app) as client:
        context = 1 << 17
        assert 2 * context < ITEMS + ITEMS_PER_TOKEN * context
        reply = client.post(COMPLETIONS, json={**SHORT, "prompt": [1] * context, "max_tokens": 0, "echo": True})
        assert reply.status_code == 200


def test_many_tools_with_large_schemas_are_no_large_body(post):
    properties = {f"property_{n}": {"type": "string", "description": "What it is. " * 4} for n in range(60)}
    schema = {"type": "object", "properties": properties}
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "parameters": schema}} for n in range(128)]
    body = json.dumps({"messages": [], "tools": tools}).encode()
    assert len(body) < BYTES
    assert post("/v1/chat/completions", body).json()["error"]["param"] == "messages"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/tokenize"])
def test_more_messages_than_the_context_has_tokens_are_refused_before_they_are_checked(path):
    field = ROUTES[path]
    model = ToyModel(Table(8, order=1), 8, context=40)
    with TestClient(create_app(Decoder(model), ServerSettings("toy"))) as client:
        reply = client.post(path, content=listed(field, b"1", 41), headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    told = "41 do not fit into the model's context of 40 tokens; send fewer"
    assert reply.json()["error"]["message"] == f"{field.decode()[1:-1]}: {told}"


def test_no_garbage_is_collected_while_a_body_is_read(monkeypatch):
    seen, parse = [], body_reading._parse
    monkeypatch.setattr(body_reading, "_parse", lambda body: seen.append(gc.isenabled()) or parse(body))
    with TestClient(create_app(knowing("Hi.", "qwen3"), ServerSettings("toy"))) as client:
        assert client.post("/tokenize", json={"prompt": "x"}).status_code == 200
    assert seen == [False]
    assert gc.isenabled()
