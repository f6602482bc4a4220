"""Texts are let in up to a limit, end in time, and are let go where nobody waits for them."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from drafttree.interfaces.server.admission import Admission, OpenRequest
from drafttree.interfaces.server.errors import ServerError
from testing.held_server import COMPLETIONS, LONG, ask, held_app, held_server, wait_until

TEXT = [1, 2, 3]


@pytest.fixture
def held():
    found = held_app(max_batch=1, max_queue=2)
    found.model.go.clear()
    with OpenRequest("", None).answering():
        yield found
    found.model.go.set()
    found.engine.close()


def test_as_many_as_fit_are_let_in_when_all_come_at_once(held):
    async def submit_all():
        return await asyncio.gather(*(held.admission.submit(TEXT) for _ in range(7)), return_exceptions=True)

    found = asyncio.run(submit_all())
    refused = [each for each in found if isinstance(each, ServerError)]
    assert len(refused) == 4
    assert {(each.status, each.code, *(each.headers or {})) for each in refused} == {(429, "queue_full", "Retry-After")}
    assert held.admission.open == 3


def test_a_place_is_free_again_when_its_text_has_ended(held):
    async def fill():
        return [await held.admission.submit(TEXT, max_new_tokens=1) for _ in range(3)]

    handles = asyncio.run(fill())
    with pytest.raises(ServerError, match="3 texts are running or waiting"):
        held.admission.check()
    held.model.go.set()
    for handle in handles:
        handle.result(20)
    held.admission.check()


def test_a_key_has_no_more_than_its_limit_and_others_go_on():
    with held_server(api_keys=("a", "b"), max_texts_per_key=2) as held:

        def post(key: str, **body):
            asked = {"prompt": TEXT, "max_tokens": 1, **body}
            return httpx.post(held.address + COMPLETIONS, json=asked, headers={"X-Api-Key": key}, timeout=60)

        held.model.go.clear()
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(post, "a") for _ in range(2)]
            wait_until(lambda: held.admission.open == 2)
            refused, other = post("a"), pool.submit(post, "b")
            wait_until(lambda: held.admission.open == 3)
            held.model.go.set()
            assert [each.result().status_code for each in (*waiting, other)] == [200] * 3
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "key_limit")
        assert post("a", n=2).status_code == 200
        for prompt, n, field in [("a", 3, "n"), (["a"] * 3, 1, "prompt")]:
            error = post("a", prompt=prompt, n=n).json()["error"]
            assert "3 texts are more than the server takes at once, 2" in error["message"]
            assert error["param"] == field
        assert post("a").status_code == 200


def test_a_refused_prompt_takes_no_place(held):
    with pytest.raises(ValueError, match="outside the vocabulary"):
        asyncio.run(held.admission.submit([10**6]))
    assert not held.admission.busy


class SlowEngine:
    """Takes its time to read a prompt."""

    def __init__(self, engine) -> None:
        self.engine, self.go, self.handles = engine, threading.Event(), []

    def submit(self, *arguments, **options):
        assert self.go.wait(20)
        self.handles.append(self.engine.submit(*arguments, **options))
        return self.handles[-1]


def test_a_text_whose_client_left_before_it_was_submitted_is_cancelled(held):
    engine = SlowEngine(held.engine)
    admission = Admission(engine, held.app.state.serving.metrics, max_texts=3)

    async def leave():
        submitting = asyncio.ensure_future(admission.submit(TEXT))
        await asyncio.sleep(0)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert admission.open == 1
        engine.go.set()
        while not engine.handles or not held.engine.metrics.cancelled:
            held.model.go.set()
            await asyncio.sleep(0.005)

    asyncio.run(leave())
    assert engine.handles[0].result(20).finish_reason == "cancelled"
    assert not admission.busy


def test_a_text_that_is_submitted_while_all_are_ended_ends_too(held):
    engine = SlowEngine(held.engine)
    admission = Admission(engine, held.app.state.serving.metrics, max_texts=3)

    async def end_all():
        submitting = asyncio.ensure_future(admission.submit(TEXT, max_new_tokens=10**5))
        await asyncio.sleep(0)
        admission.cancel_all()
        engine.go.set()
        held.model.go.set()
        return (await submitting).result(20)

    assert asyncio.run(end_all()).finish_reason == "shutting_down"


def test_a_text_ends_in_time_with_what_there_is():
    with held_server(timeout=0.05) as held:
        reply = httpx.post(held.address + COMPLETIONS, json={**LONG, "max_tokens": 10**6}, timeout=20).json()
        assert reply["choices"][0]["finish_reason"] == "length"
        assert reply["usage"]["completion_tokens"] < 10**6


def test_a_text_that_waits_ends_in_time_too():
    with held_server(max_batch=1, timeout=0.2) as held:
        held.model.go.clear()
        with ask(held.address, **LONG) as first, ask(held.address, **LONG) as second:
            wait_until(lambda: held.admission.open == 2)
            asyncio.run(asyncio.sleep(0.3))
            held.model.go.set()
            assert b"200 OK" in first.recv(100)
            assert b"200 OK" in second.recv(100)
        assert held.engine.metrics.cancelled == 2


def test_of_a_prompt_that_was_not_read_in_time_what_is_known_is_told():
    with held_server(max_batch=1, timeout=0.2) as held:
        held.model.go.clear()
        with ask(held.address, **LONG):
            wait_until(held.model.began.is_set)
            asked = {**LONG, "echo": True, "logprobs": 1}
            with ThreadPoolExecutor() as clients:
                reply = clients.submit(httpx.post, held.address + COMPLETIONS, json=asked, timeout=20)
                wait_until(lambda: held.admission.open == 2)
                asyncio.run(asyncio.sleep(0.3))
                held.model.go.set()
        (choice,) = reply.result().json()["choices"]
        assert choice["finish_reason"] == "length"
        assert choice["logprobs"]["token_logprobs"] == [None]


def test_a_request_of_many_texts_holds_up_no_other():
    """Its texts fill the batch, and the test does not wait for their end."""
    with held_server(max_batch=2) as held, ask(held.address, **LONG, n=12) as many:
        wait_until(lambda: held.admission.open == 12 and held.engine.metrics.running == 2)
        reply = httpx.post(held.address + COMPLETIONS, json={"prompt": [1], "max_tokens": 1}, timeout=20)
        assert reply.status_code == 200
        assert held.admission.open == 12
        many.close()
        wait_until(lambda: not held.admission.busy)
