"""Threads that share a target run their rounds in turn."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from drafttree import Decoder
from drafttree.engine.batching import Engine
from drafttree.engine.target_lock import lock_of
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter, ToyModel

LENGTH = 24


class SharedModel(ToyModel):
    """Notes whether two threads were in it at once, as a recorded pass must not see it."""

    inside, overlapped = 0, False

    def forward(self, *arguments, **options):
        self.inside += 1
        time.sleep(0.001)
        self.overlapped |= self.inside > 1
        output = super().forward(*arguments, **options)
        self.inside -= 1
        return output


@pytest.fixture
def target() -> SharedModel:
    return SharedModel(TARGET)


@pytest.fixture
def decoder(target) -> Decoder:
    return toy_decoder(target, ToyDrafter(DRAFT))


def engine_text(decoder: Decoder, prompt: list[int]) -> list[int]:
    with Engine(decoder) as engine:
        return engine.submit(prompt, max_new_tokens=LENGTH).result(20).tokens


def list_text(decoder: Decoder, prompt: list[int]) -> list[int]:
    return decoder.generate([prompt], max_new_tokens=LENGTH)[0].tokens


def single_text(decoder: Decoder, prompt: list[int]) -> list[int]:
    return decoder.generate(prompt, max_new_tokens=LENGTH).tokens


@pytest.mark.parametrize("write", [engine_text, list_text, single_text])
def test_an_engine_and_another_thread_never_run_a_target_at_once(decoder, target, write):
    expected = [single_text(decoder, [place, 1]) for place in range(2)]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(write, decoder.with_drafter(None), [1, 1])
        assert engine_text(decoder, [0, 1]) == expected[0]
        assert other.result(20) == expected[1]
    assert not target.overlapped


def test_a_thread_gets_its_turn_while_an_engine_is_busy(decoder):
    with Engine(decoder) as engine:
        handle = engine.submit([1, 2], max_new_tokens=20_000)
        next(iter(handle))
        single_text(decoder, [3])
        assert not handle.done
        handle.cancel()


def test_a_thread_that_holds_the_lock_may_take_it_again_though_another_one_waits(target):
    lock, entered = lock_of(target), threading.Event()

    def enter() -> None:
        with lock:
            entered.set()

    with lock:
        other = threading.Thread(target=enter)
        other.start()
        time.sleep(0.05)
        with lock:
            assert not entered.is_set()
    other.join(20)
    assert entered.is_set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_a_thread_that_it_does_not_have(target):
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_of(target):
            held.set()
            free.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(20)
    child = os.fork()
    if not child:
        signal.alarm(20)
        with lock_of(target):
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    free.set()
    thread.join(20)
