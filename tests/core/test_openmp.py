"""torch's operations go on in a forked process, whichever thread has run them before, with as many threads."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

import drafttree
from drafttree import Decoder, Engine
from testing import tiny

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]
LENGTH = {"max_new_tokens": 4, "ignore_eos": True}
LARGE = 1 << 20
"""Numbers of a tensor that torch compares in several threads."""


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def compare() -> bool:
    """An operation for which torch takes all threads; whether it has them."""
    ones = torch.ones(LARGE)
    return torch.equal(ones, ones.clone()) and torch.get_num_threads() == 2


def fork(work: Callable[[], bool], seconds: int = 20) -> int:
    """The exit code of a forked process: 0 where work is done and true, less where it takes too long."""
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        os._exit(not work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_process_compares_tensors(two_threads):
    assert compare()
    assert [fork(compare) for _ in range(3)] == [0, 0, 0]
    assert compare()


def test_so_does_one_that_a_forked_process_has_forked(two_threads):
    assert compare()
    assert fork(lambda: compare() and fork(compare) == 0, 40) == 0


def test_so_does_one_that_another_thread_has_forked(two_threads):
    codes = list[int]()

    def run() -> None:
        compare()
        codes.append(fork(compare))

    assert compare()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert codes == [0]


def test_a_decoder_writes_in_a_forked_process_beside_an_engine(two_threads):
    decoder = drafttree.load(tiny.build("llama"), "lookup", "chain")
    text = decoder.generate([5, 3, 5, 3], **LENGTH).tokens
    ids = torch.tensor([[5, 3, 5, 3]])

    def write() -> bool:
        stock = decoder.target.module.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=False)
        return decoder.generate([5, 3, 5, 3], **LENGTH).tokens == text == stock[0, 4:].tolist()

    with Engine(decoder) as engine:
        assert engine.submit([5, 3, 5, 3], **LENGTH).result(30).tokens == text
        assert write()
        assert compare()
        assert fork(lambda: compare() and write(), 60) == 0
        assert engine.submit([5, 3, 5, 3], **LENGTH).result(30).tokens == text


@pytest.mark.slow
def test_two_hundred_forks_beside_a_busy_process(two_threads):
    """`test_a_decoder_writes_in_a_forked_process_beside_an_engine` is the fast one."""
    decoder: Decoder = drafttree.load("embedded", "embedded-eagle3", dtype="bfloat16")
    text = decoder.generate("The old man", **LENGTH).tokens
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(200):
            assert compare()
            assert fork(lambda: compare() and decoder.generate("The old man", **LENGTH).tokens == text, 60) == 0
    finally:
        busy.kill()
        busy.wait()
