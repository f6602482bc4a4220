"""A client that goes away gives its places back, whatever it had asked for."""

import httpx
import pytest

from drafttree.engine.batching import Handle
from testing.batches import TOKENIZER
from testing.held_server import COMPLETIONS, LONG, STREAMS, ask, held_server, wait_until


@pytest.fixture
def cancelled(monkeypatch):
    """The reasons of all cancellations."""
    reasons, cancel = [], Handle.cancel

    def noting(handle, reason="cancelled"):
        reasons.append(None if handle.done else reason)
        cancel(handle, reason)

    monkeypatch.setattr(Handle, "cancel", noting)
    return reasons


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("texts", [1, 3])
def test_texts_end_within_a_round_when_their_client_leaves(cancelled, stream, texts):
    with held_server() as held:
        held.model.go.clear()
        client = ask(held.address, **LONG, stream=stream, n=texts)
        wait_until(lambda: held.admission.open == texts and held.model.began.is_set())
        passes = held.model.passes
        client.close()
        wait_until(lambda: cancelled.count("cancelled") >= texts)
        held.model.go.set()
        wait_until(lambda: not held.admission.busy)
        assert held.model.passes - passes <= texts  # a model of tests reads each text in a pass of its own
        assert held.engine.metrics.cancelled == texts
        assert held.engine.memory.reserved == 0


def test_a_text_ends_when_its_client_leaves_behind_the_first_chunk():
    with held_server() as held:
        with httpx.stream("POST", held.address + COMPLETIONS, json={**LONG, "stream": True}) as reply:
            next(reply.iter_lines())
        wait_until(lambda: not held.admission.busy)
        assert held.engine.metrics.cancelled == 1
        assert held.engine.metrics.finished == 0


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_text_ends_when_the_client_of_its_events_leaves(monkeypatch, path):
    monkeypatch.setattr(TOKENIZER, "chat_template", "{{ messages[0].content }}")
    with held_server() as held:
        with httpx.stream("POST", held.address + path, json={**STREAMS[path], "stream": True}) as reply:
            assert next(reply.iter_lines()).startswith("event: ")
        wait_until(lambda: not held.admission.busy)
        assert (held.engine.metrics.cancelled, held.engine.metrics.finished) == (1, 0)


def test_a_waiting_text_leaves_the_queue_with_its_client():
    with held_server(max_batch=1) as held:
        held.model.go.clear()
        first = ask(held.address, **LONG)
        wait_until(held.model.began.is_set)
        second = ask(held.address, **LONG)
        wait_until(lambda: held.admission.open == 2)
        second.close()
        held.model.go.set()
        wait_until(lambda: held.admission.open == 1)
        assert held.engine.metrics.cancelled == 1
        first.close()
        wait_until(lambda: not held.admission.busy)


def test_a_client_that_stays_is_answered():
    with held_server() as held, httpx.Client(base_url=held.address) as client:
        for _ in range(2):  # on one connection
            reply = client.post(COMPLETIONS, json={**LONG, "max_tokens": 5})
            assert reply.json()["usage"]["completion_tokens"] == 5
        assert held.engine.metrics.cancelled == 0
