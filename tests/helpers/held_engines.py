"""A decoder whose target's passes can be held up, and engines of it that leave no thread behind."""

import threading
from collections.abc import Iterator

import pytest

from drafttree import Decoder
from drafttree.policies import Talon
from testing.costs import toy_decoder
from testing.held_model import HeldModel
from testing.small_trees import DRAFT, TARGET
from testing.toy import PieceTokenizer, ToyDrafter

LETTERS = PieceTokenizer([bytes([code]) for code in b"abcdefgh"])
PROMPTS = [[place % 8, 1, 4, 1, 5][: 1 + place % 5] for place in range(6)]
LENGTH = 20
TREES = Talon(width=4, budget=12)
SAMPLED = {"temperature": 0.9, "seed": 4}
OTHERS: set[threading.Thread] = set()
"""Threads that are none of these tests'."""


@pytest.fixture(scope="module", autouse=True)
def others() -> None:
    """Leave the engines of servers alone that other tests share for longer."""
    OTHERS.update(threading.enumerate())


@pytest.fixture
def target() -> Iterator[HeldModel]:
    """The model of `decoder`; no thread of an engine is left behind it."""
    model = HeldModel(TARGET)
    yield model
    model.go.set()
    for thread in engine_threads():
        thread.join(10)
    assert not engine_threads()


@pytest.fixture
def decoder(target) -> Decoder:
    return toy_decoder(target, ToyDrafter(DRAFT), TREES, tokenizer=LETTERS)


def engine_threads() -> list[threading.Thread]:
    found = (thread for thread in threading.enumerate() if thread.name == "drafttree-engine")
    return [thread for thread in found if thread not in OTHERS]
