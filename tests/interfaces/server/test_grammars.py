"""Grammars of requests are made one at a time, the shortest first, and hold up nobody."""

import asyncio
import json
import threading
import time
from types import SimpleNamespace

import httpx
import pytest
from prometheus_client import Histogram

from drafttree.interfaces.server import admission
from drafttree.interfaces.server.admission import OpenRequest
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.fields import StructuredOutputs
from drafttree.interfaces.server.grammar import Grammars, WantedGrammar, outputs_grammar
from drafttree.interfaces.server.serving import ServerSettings
from testing.grammars import accepts
from testing.held_server import COMPLETIONS, LONG, ask, held_app
from testing.live_server import serving

pytest.importorskip("llguidance")

TIMES = Histogram("times", "Of grammars.", registry=None)
PATIENCE = 30
"""Seconds after which a test does not go on waiting."""


@pytest.fixture(autouse=True)
def asked():
    """A request that is being answered."""
    with OpenRequest("", None).answering():
        yield


def optional(count: int, name: str = "p") -> dict:
    return {"type": "object", "properties": {f"{name}{place}": {"type": "string"} for place in range(count)}}


def wanted(schema: dict) -> WantedGrammar:
    return WantedGrammar(json.dumps({"type": "json_schema", "json_schema": schema}), ("response_format",))


SMALL, LARGE = wanted(optional(1)), wanted(optional(300))


async def made_for(made: Grammars, what: WantedGrammar, **options):
    """The grammar of a request."""
    found, _ = await made.made({"grammar": what, **options})
    return found["grammar"]


async def until(true):
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.01)


class Held:
    """Holds up the thread that makes grammars, and tells in which order it makes them."""

    def __init__(self, monkeypatch) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.order: list[WantedGrammar] = []
        parsed = WantedGrammar.parse

        def parse(what):
            self.began.set()
            assert self.go.wait(PATIENCE)
            self.order.append(what)
            return parsed(what)

        monkeypatch.setattr(WantedGrammar, "parse", parse)


@pytest.fixture
def held(monkeypatch):
    found = Held(monkeypatch)
    yield found
    found.go.set()


def test_a_grammar_is_made_once_for_all_who_want_it(decoder):
    made = Grammars(decoder, TIMES)

    async def ask_often():
        return await asyncio.gather(*(made_for(made, SMALL) for _ in range(4)))

    assert len(set(map(id, asyncio.run(ask_often())))) == 1


@pytest.mark.parametrize(
    ("form", "good"),
    [
        ({"type": "regex", "pattern": "a+"}, "aa"),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, "a"),
        ({"type": "const_string", "value": "a"}, "a"),
        ({"type": "json_schema", "json_schema": {"const": 1}}, "1"),
    ],
)
def test_every_kind_is_parsed(form, good):
    assert accepts(WantedGrammar(json.dumps(form), ("x",)).parse(), good)


def test_a_text_may_be_one_of_several():
    texts = ['a\n\b"', "é"]
    assert all(accepts(outputs_grammar(StructuredOutputs(choice=texts)).parse(), text) for text in texts)


def test_a_grammar_ends_with_the_tokens_that_end_its_text(decoder):
    options = {"grammar": WantedGrammar(json.dumps({"type": "regex", "pattern": "a?"}), ("x",)), "eos_token_id": [5]}
    found = asyncio.run(Grammars(decoder, TIMES).made(options))[0]["grammar"]
    assert found.new_state(decoder.tokenizer, decoder.target.vocab_size, (5,))


def test_what_is_malformed_is_refused_as_in_python(decoder):
    made = Grammars(decoder, TIMES)
    with pytest.raises(ServerError, match="'not' at # cannot be enforced") as found:
        asyncio.run(made_for(made, wanted({"not": {}})))
    assert found.value.param == "response_format"
    with pytest.raises(ServerError, match="leave out ignore_eos"):
        asyncio.run(made_for(made, SMALL, ignore_eos=True))


def test_the_shortest_is_made_first(decoder, held):
    made = Grammars(decoder, TIMES)

    async def crowd():
        first = asyncio.ensure_future(made_for(made, LARGE))
        await until(held.began.is_set)
        others = [asyncio.ensure_future(made_for(made, wanted(optional(n)))) for n in (30, 20)]
        others.append(asyncio.ensure_future(made_for(made, SMALL)))
        await asyncio.sleep(0.05)
        held.go.set()
        await asyncio.gather(first, *others)

    asyncio.run(crowd())
    assert held.order == [LARGE, SMALL, wanted(optional(20)), wanted(optional(30))]


def test_what_nobody_waits_for_is_not_made(decoder, held):
    made = Grammars(decoder, TIMES)

    async def leave():
        asking = [asyncio.ensure_future(made_for(made, LARGE))]
        await until(held.began.is_set)
        asking.append(asyncio.ensure_future(made_for(made, wanted(optional(9)))))
        await asyncio.sleep(0.05)
        for each in asking:
            each.cancel()  # one is made, one waits
        await asyncio.wait(asking)
        held.go.set()
        await made_for(made, SMALL)

    asyncio.run(leave())
    assert held.order == [LARGE, SMALL]


def test_the_time_of_a_request_may_be_over_before_its_grammar_is_made(decoder, held):
    made = Grammars(decoder, TIMES)

    async def wait_for_a_turn():
        with (
            OpenRequest("", 0.05).answering(),
            pytest.raises(ServerError, match="was over before response_format was read") as found,
        ):
            await made.made({"grammar": SMALL})
        return found.value.status

    assert asyncio.run(wait_for_a_turn()) == 503


def test_the_time_of_a_text_runs_from_the_arrival_of_its_request(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: clock[0], perf_counter=time.perf_counter))
    held = held_app()
    held.model.go.clear()

    async def submit_late():
        with OpenRequest("", 1000).answering():
            clock[0] = 1001
            handle = await held.admission.submit([1, 2, 3], max_new_tokens=10**6)
            await until(lambda: handle.done or held.model.began.is_set())
            held.model.go.set()
            return await asyncio.to_thread(handle.result, PATIENCE)

    assert asyncio.run(submit_late()).finish_reason == "length"
    held.engine.close()


def test_texts_whose_grammars_wait_count_as_waiting():
    held = held_app(max_batch=1, max_queue=1)

    async def prepare():
        async with held.admission.preparing(), held.admission.preparing():
            with pytest.raises(ServerError, match="2 texts are running or waiting"):
                held.admission.check()
            assert not held.admission.busy
        held.admission.check()

    asyncio.run(prepare())
    held.engine.close()


def test_a_server_that_shuts_down_waits_for_no_grammar(decoder, held):
    app, made = held_app(), Grammars(decoder, TIMES)

    async def shut_down():
        async def prepare():
            async with app.admission.preparing():
                await made_for(made, LARGE)

        preparing = asyncio.ensure_future(prepare())
        await until(held.began.is_set)
        app.admission.draining = True
        app.admission.refuse_preparing()
        async with asyncio.timeout(PATIENCE):
            await preparing

    with pytest.raises(ServerError) as found:
        asyncio.run(shut_down())
    assert (found.value.status, found.value.code) == (503, "shutting_down")
    app.engine.close()


def test_a_server_that_shuts_down_may_refuse_again_what_is_still_ending():
    held, refused = held_app(), asyncio.Event()

    async def prepare():
        async with held.admission.preparing():
            try:
                await asyncio.Event().wait()
            finally:
                held.admission.refuse_preparing()
                refused.set()

    async def shut_down():
        preparing = asyncio.ensure_future(prepare())
        await asyncio.sleep(0)
        held.admission.draining = True
        held.admission.refuse_preparing()
        with pytest.raises(ServerError, match="shutting down"):
            await preparing

    asyncio.run(shut_down())
    assert refused.is_set()
    held.engine.close()


def test_plain_requests_do_not_wait_for_grammars(decoder):
    """Names as short as possible: the heaviest schemas that a request may have."""
    body = {**LONG, "max_tokens": 4, "prompt": "x"}
    with serving(create_app(decoder, ServerSettings("embedded"))) as found:
        heavy = [ask(found, **body, structured_outputs={"json": optional(1100, name)}) for name in "abcdefgh"]
        with httpx.Client(base_url=found, timeout=PATIENCE) as client:
            for _ in range(3):
                assert client.post(COMPLETIONS, json=body).status_code == 200
            reply = client.post(COMPLETIONS, json={**body, "structured_outputs": {"json": {"const": 7}}})
        assert reply.json()["choices"][0]["text"] == "7"
        for each in heavy:
            each.close()
