"""An engine ends with its block, its process, its last reference or Ctrl-C, and leaves no thread and no text behind."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref

import pytest

from drafttree.engine.batching import Engine, Handle
from drafttree.errors import EngineClosedError
from testing.held_model import HeldModel
from tests.helpers.held_engines import LENGTH, PROMPTS, engine_threads


def interrupt_soon(target: HeldModel) -> None:
    """Press Ctrl-C once the main thread waits for the model, and let that go on."""

    def press() -> None:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        target.go.set()

    threading.Timer(0.2, press).start()


@pytest.fixture
def ctrl_c():
    """Lets Ctrl-C come through: workers of pytest-xdist ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_closing_a_stream_ends_its_text(decoder):
    async def first() -> object:
        chunks = decoder.astream([1, 2], max_new_tokens=500)
        chunk = await chunks.__anext__()
        await chunks.aclose()
        return chunk

    assert asyncio.run(first()).tokens
    assert not engine_threads()


def test_leaving_the_with_block_waits_for_all_texts(decoder):
    with Engine(decoder, max_batch=2) as engine:
        handles = [engine.submit(prompt, max_new_tokens=LENGTH) for prompt in PROMPTS]
    assert [handle.done for handle in handles] == [True] * len(PROMPTS)
    assert {handle.result().finish_reason for handle in handles} == {"length"}


def test_an_error_inside_the_with_block_ends_all_texts_and_comes_out(decoder):
    handles: list[Handle] = []

    def run() -> None:
        with Engine(decoder, max_batch=2) as engine:
            handles.extend(engine.submit(prompt, max_new_tokens=5000) for prompt in PROMPTS)
            raise KeyError

    with pytest.raises(KeyError):
        run()
    assert {handle.result(1).finish_reason for handle in handles} == {"cancelled"}


def test_closing_without_draining_ends_all_texts(decoder, target):
    target.go.clear()
    engine = Engine(decoder, max_batch=2)
    handles = [engine.submit(prompt, max_new_tokens=5000) for prompt in PROMPTS]
    assert target.began.wait(10)
    threading.Timer(0.05, target.go.set).start()
    engine.close()
    assert {handle.result(0).finish_reason for handle in handles} == {"cancelled"}
    assert engine.metrics.cancelled == len(PROMPTS)


def test_closing_twice_is_closing_once(decoder):
    with Engine(decoder) as engine:
        handle = engine.submit([1], max_new_tokens=LENGTH)
        engine.close(drain=True)
        engine.close()
    assert handle.result(0).finish_reason == "length"
    assert "closed" in repr(engine)


def test_an_engine_nobody_used_closes_at_once(decoder):
    with Engine(decoder):
        assert len(engine_threads()) == 1


def test_ctrl_c_in_a_list_of_prompts_comes_out_and_the_decoder_goes_on(decoder, target):
    expected = [text.tokens for text in decoder.generate(PROMPTS, max_new_tokens=LENGTH)]
    target.interrupt_at = target.passes + 12
    with pytest.raises(KeyboardInterrupt):
        decoder.generate(PROMPTS, max_new_tokens=LENGTH)
    assert [text.tokens for text in decoder.generate(PROMPTS, max_new_tokens=LENGTH)] == expected


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("wait", [list, lambda handle: handle.result()], ids=["iterating", "waiting for the result"])
def test_ctrl_c_while_a_handle_is_waited_for_ends_all(decoder, target, wait):
    handles: list[Handle] = []
    target.go.clear()

    def run() -> None:
        with Engine(decoder, max_batch=2) as engine:
            handles.extend(engine.submit(prompt, max_new_tokens=5000) for prompt in PROMPTS)
            interrupt_soon(target)
            wait(handles[0])

    with pytest.raises(KeyboardInterrupt):
        run()
    assert {handle.result(0).finish_reason for handle in handles} == {"cancelled"}
    assert not engine_threads()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_while_the_with_block_waits_for_its_texts_ends_all(decoder, target):
    handles: list[Handle] = []
    target.go.clear()

    def run() -> None:
        with Engine(decoder, max_batch=2) as engine:
            handles.extend(engine.submit(prompt, max_new_tokens=5000) for prompt in PROMPTS)
            interrupt_soon(target)

    with pytest.raises(KeyboardInterrupt):
        run()
    assert not engine_threads()
    assert {handle.result(0).finish_reason for handle in handles} == {"cancelled"}


LEFT_OPEN = """
import drafttree
engine = drafttree.Engine(drafttree.load("embedded", "none", "chain"))
next(iter(engine.submit("Once", max_new_tokens=400)))
"""


def test_python_ends_as_usual_with_an_engine_at_work():
    left = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=60, check=False)
    assert left.returncode == 0, left.stderr


def test_an_engine_that_is_dropped_ends_its_thread(decoder):
    engine = Engine(decoder)
    engine.submit([1], max_new_tokens=2).result(20)
    (thread,) = engine_threads()
    del engine
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


def test_texts_of_a_dropped_engine_are_written_to_their_end(decoder, target):
    target.go.clear()
    engine = Engine(decoder, max_batch=1)
    handles = [engine.submit([place], max_new_tokens=LENGTH) for place in range(3)]
    del engine
    gc.collect()
    target.go.set()
    assert [handle.result(20).finish_reason for handle in handles] == ["length"] * 3


def test_an_engine_is_kept_by_nothing_of_its_own(decoder):
    engine = Engine(decoder)
    handle = engine.submit([1], max_new_tokens=2)
    handle.result(20)
    dropped = weakref.ref(engine)
    del engine
    assert dropped() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_has_no_engine(decoder):
    """It is told so at once, may close the engine, and the engine goes on where it was made."""
    with Engine(decoder) as engine:
        engine.submit([1], max_new_tokens=2).result(20)
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(exit_code_of_submitting(engine))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert engine.submit([1], max_new_tokens=2).result(20).tokens


def exit_code_of_submitting(engine: Engine) -> int:
    """0 where the engine refuses a request by name, and closes."""
    try:
        engine.submit([1], max_new_tokens=2)
    except EngineClosedError as error:
        engine.close()
        return not ("forked" in str(error) and engine.closed)
    return 2


def test_nothing_can_be_submitted_to_a_closed_engine(decoder):
    engine = Engine(decoder)
    engine.close()
    with pytest.raises(EngineClosedError, match="the engine is closed; make another one"):
        engine.submit([1])
