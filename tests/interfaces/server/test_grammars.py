"""Grammars of requests are compiled apart, within bounds, by turns of clients, and hold up nobody."""

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from types import SimpleNamespace

import httpx
import pytest

from drafttree.constraints.carried_grammar import CarriedGrammar, CompiledGrammar
from drafttree.constraints.grammar import vocabulary_of
from drafttree.errors import ConfigError
from drafttree.interfaces.server import grammar_process, grammars, open_request
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.grammar_process import WantedGrammar
from drafttree.interfaces.server.grammars import Grammars, KeptGrammars
from drafttree.interfaces.server.open_request import OpenRequest
from drafttree.interfaces.server.serving import ServerSettings
from testing.held_server import COMPLETIONS, LONG, ask, held_app, wait_until
from testing.live_server import serve_process, serving

PATIENCE = 30
"""Seconds after which a test does not go on waiting; a heavy schema takes longer."""


def optional(count: int, name: str = "p") -> dict:
    return {"type": "object", "properties": {f"{name}{place}": {"type": "string"} for place in range(count)}}


def wanted(schema: dict) -> WantedGrammar:
    return WantedGrammar("json_schema", json.dumps(schema), "response_format")


SMALL = wanted(optional(1))
HEAVY = [wanted(optional(2500, name)) for name in "abc"]
"""Schemas that take a minute each."""


async def compiled(made: Grammars, what: WantedGrammar, client: str = "", **options):
    """A compiled grammar for a request of a client."""
    with OpenRequest(client, None).answering():
        found = await made.compiled({"grammar": what, **options})
    return found["grammar"]


def compiling() -> int:
    return sum(each.name == "grammar" for each in multiprocessing.active_children())


async def until(true):
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.01)


@pytest.fixture
def counted(monkeypatch):
    """The grammars that a process was started for."""
    found, apart = [], grammars.compile_apart

    def counting(what, *arguments):
        found.append(what)
        return apart(what, *arguments)

    monkeypatch.setattr(grammars, "compile_apart", counting)
    return found


def test_a_grammar_is_compiled_once_for_all_who_want_it(decoder, counted):
    made = Grammars(decoder, PATIENCE)

    async def ask_often():
        first = await asyncio.gather(*(compiled(made, SMALL) for _ in range(4)))
        return [*first, await compiled(made, SMALL, "another")]

    found = asyncio.run(ask_often())
    assert len(set(map(id, found))) == len(counted) == 1


def test_a_grammar_is_compiled_for_the_tokens_that_end_its_text(decoder, counted):
    made = Grammars(decoder, PATIENCE)

    async def ask_both():
        return [await compiled(made, SMALL), await compiled(made, SMALL, eos_token_id=[5])]

    vocab = decoder.target.vocab_size
    for found, eos in zip(asyncio.run(ask_both()), [decoder.eos, (5,)], strict=True):
        assert found.new_state(decoder.tokenizer, vocab, eos)._matcher.stop_token_ids == [*eos]
    assert len(counted) == 2


def test_what_is_malformed_is_refused_as_in_python(decoder):
    made = Grammars(decoder, PATIENCE)
    with pytest.raises(ConfigError, match="'not' at # is not enforced by xgrammar"):
        asyncio.run(compiled(made, wanted({"not": {}})))
    with pytest.raises(ServerError, match="leave out ignore_eos"):
        asyncio.run(compiled(made, SMALL, ignore_eos=True))


def test_what_takes_too_long_is_refused_by_its_size(decoder):
    with pytest.raises(ServerError, match=r"response_format has [\d,]+ characters and takes more than 0.05 s") as found:
        asyncio.run(compiled(Grammars(decoder, 0.05), HEAVY[0]))
    assert (found.value.status, found.value.param) == (400, "response_format")
    assert compiling() == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the memory of a process")
@pytest.mark.parametrize("memory", [1 << 20, 16 << 20])
def test_what_takes_too_much_memory_is_refused_by_its_size(decoder, memory):
    with pytest.raises(ServerError, match=rf"characters and takes more than {memory >> 20} MB to compile") as found:
        asyncio.run(compiled(Grammars(decoder, PATIENCE, memory), wanted(optional(800))))
    assert found.value.status == 400


def test_what_would_take_too_long_again_in_the_server_is_refused(decoder, monkeypatch):
    vocabulary = vocabulary_of(decoder.tokenizer, decoder.target.vocab_size, decoder.eos).serialize_json()
    monkeypatch.setattr(grammar_process, "AGAIN", 0)
    many = wanted(optional(200))
    assert isinstance(grammar_process._outcome(many, vocabulary), TimeoutError)
    assert isinstance(grammar_process._outcome(SMALL, vocabulary), CarriedGrammar)
    monkeypatch.setattr(grammars, "_receive", lambda *_: TimeoutError())
    with pytest.raises(ServerError, match="takes more than 5 s") as found:
        asyncio.run(compiled(Grammars(decoder, PATIENCE), many))
    assert found.value.status == 400


def test_a_process_that_ends_without_a_word_is_told_as_too_large(decoder, monkeypatch):
    monkeypatch.setattr(grammar_process, "compile_grammar", os.getpid)  # takes other arguments
    with pytest.raises(ServerError, match="takes more than 1,024 MB"):
        asyncio.run(compiled(Grammars(decoder, PATIENCE), SMALL))


def test_one_client_leaves_a_place_to_the_others(decoder):
    made = Grammars(decoder, 10 * PATIENCE)

    async def crowd():
        heavy = [asyncio.ensure_future(compiled(made, each, "crowd")) for each in HEAVY]
        await until(compiling)
        for client in ("first", "second"):
            async with asyncio.timeout(PATIENCE):
                await compiled(made, wanted(optional(1, client)), client)
            assert compiling() == 1
        for each in heavy:
            each.cancel()
        await asyncio.wait(heavy)

    asyncio.run(crowd())
    assert compiling() == 0


def test_a_client_that_leaves_gives_its_place_back(decoder, counted):
    made = Grammars(decoder, 10 * PATIENCE)

    async def leave():
        heavy = [asyncio.ensure_future(compiled(made, each)) for each in HEAVY]
        await until(compiling)
        heavy[1].cancel()  # waits
        heavy[0].cancel()  # is compiled
        await until(lambda: len(counted) == 2)
        heavy[2].cancel()
        async with asyncio.timeout(PATIENCE):
            await compiled(made, SMALL)

    asyncio.run(leave())
    assert counted == [HEAVY[0], HEAVY[2], SMALL]


def test_the_time_of_a_request_may_be_over_before_its_grammar_is_compiled(decoder):
    made = Grammars(decoder, 10 * PATIENCE)

    async def wait_for_a_turn():
        heavy = asyncio.ensure_future(compiled(made, HEAVY[0]))
        await until(compiling)
        with (
            OpenRequest("", 0.05).answering(),
            pytest.raises(ServerError, match="was over before response_format was compiled") as found,
        ):
            await made.compiled({"grammar": SMALL})
        heavy.cancel()
        await asyncio.wait([heavy])
        return found.value.status

    assert asyncio.run(wait_for_a_turn()) == 503
    with OpenRequest("", 0.5).answering(), pytest.raises(ServerError, match="was over before response_format"):
        asyncio.run(made.compiled({"grammar": HEAVY[0]}))


def test_the_time_of_a_text_runs_from_the_arrival_of_its_request(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(open_request, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    held = held_app(timeout=1000)
    held.model.go.clear()

    async def submit_late():
        with held.admission.request():
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


def test_a_server_that_shuts_down_waits_for_no_grammar(decoder):
    held, made = held_app(), Grammars(decoder, 10 * PATIENCE)

    async def shut_down():
        async def prepare():
            async with held.admission.preparing():
                await compiled(made, HEAVY[0])

        preparing = asyncio.ensure_future(prepare())
        await until(compiling)
        held.admission.draining = True
        held.admission.refuse_preparing()
        async with asyncio.timeout(PATIENCE):
            await preparing

    with pytest.raises(ServerError) as found:
        asyncio.run(shut_down())
    assert (found.value.status, found.value.code, compiling()) == (503, "shutting_down", 0)
    held.engine.close()


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


def test_the_latest_used_grammars_are_kept():
    kept = KeptGrammars(10)
    for name in "abc":
        kept.put(name, CompiledGrammar(name, None, 4))
        kept.put(name, CompiledGrammar(name, None, 4))
        kept.get("a")
    assert [bool(kept.get(name)) for name in "abc"] == [True, False, True]
    kept.put("d", CompiledGrammar("d", None, 11))
    assert not any(kept.get(name) for name in "abcd")


def test_plain_requests_do_not_wait_for_grammars(decoder):
    """Names as short as possible: the heaviest schemas that a request may have."""
    body = {**LONG, "max_tokens": 4, "prompt": "x"}
    with serving(create_app(decoder, ServerSettings("embedded", grammar_timeout=10 * PATIENCE))) as found:
        heavy = [ask(found, **body, structured_outputs={"json": optional(1100, name)}) for name in "abcdefgh"]
        wait_until(compiling)
        with httpx.Client(base_url=found, timeout=PATIENCE) as client:
            for _ in range(3):
                assert client.post(COMPLETIONS, json=body).status_code == 200
        assert compiling() == 1
        for each in heavy:
            each.close()
        wait_until(lambda: not compiling())
        with httpx.Client(base_url=found, timeout=PATIENCE) as client:
            reply = client.post(COMPLETIONS, json={**body, "structured_outputs": {"json": {"const": 7}}})
        assert reply.json()["choices"][0]["text"] == "7"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_processes_begin_with_the_first_grammar_and_end_with_the_server(sent):
    process, found = serve_process()
    try:
        assert not children(process.pid)
        small = {"prompt": "x", "max_tokens": 9, "structured_outputs": {"json": {"const": 7}}}
        assert httpx.post(found + COMPLETIONS, json=small, timeout=PATIENCE).status_code == 200
        with ask(found, prompt="x", structured_outputs={"json": optional(1100)}):
            wait_until(lambda: len(descendants(process.pid)) >= 3)  # what forks, what tracks it, what compiles
            running = descendants(process.pid)
            process.send_signal(sent)
            _, error = process.communicate(timeout=PATIENCE)
        assert sent == signal.SIGKILL or "Traceback" not in error
        wait_until(lambda: not any(alive(each) for each in running))
    finally:
        process.kill()


def children(process: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{each}/stat") as state:
                if int(state.read().rpartition(")")[2].split()[1]) == process:
                    found.append(int(each))
        except OSError:
            continue
    return found


def descendants(process: int) -> list[int]:
    return [found for each in children(process) for found in (each, *descendants(each))]


def alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as state:
            return state.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
