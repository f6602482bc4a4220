"""Constraints that take long make their own text slow, not those beside it, and change none."""

import time

import pytest

from drafttree.engine.generation import Reader
from drafttree.policies import Talon
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter, ToyModel

LENGTH, HOURS = 40, 10_000.0


class SlowState:
    """Forbids nothing, and takes hours of a CPU by the clock that it moves."""

    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def restrict(self, paths, logits):
        self.clock[0] += HOURS
        return logits

    def commit(self, token) -> None:
        pass


class Slow:
    def __init__(self, clock: list[float]) -> None:
        self.clock = clock

    def new_state(self, tokenizer, vocab_size, eos):
        return SlowState(self.clock)


class Ends(Reader):
    """Notes how long every text is when this one ends."""

    def __init__(self, requests: list) -> None:
        self.requests = requests

    def end(self, ended) -> None:
        self.lengths = [len(request.tokens) for request in self.requests]
        self.text = ended.tokens


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    return now


@pytest.fixture
def decoder():
    return toy_decoder(ToyModel(TARGET), ToyDrafter(DRAFT), Talon(width=4, budget=12))


def write(decoder, constraints: list) -> list[Ends]:
    loop, requests = decoder.batch_loop(len(constraints), budget=6), []
    for order, constraint in enumerate(constraints):
        requests.append(decoder.prepare([1, 2], max_new_tokens=LENGTH, grammar=constraint, seed=order))
        requests[-1].give_to(Ends(requests))
        loop.add(requests[-1])
    while loop.busy:
        loop.step()
    return [request.reader for request in requests]


def test_a_slow_constraint_lets_the_others_pass(decoder, clock):
    slow, *plain = write(decoder, [Slow(clock), None, None])
    for each in plain:
        assert each.lengths[0] <= 2 + 8  # the prompt, and what one round commits at most
    assert slow.lengths == [2 + LENGTH] * 3


@pytest.mark.parametrize("constrained", [1, 3])
def test_texts_of_equally_slow_constraints_go_on_together(decoder, clock, constrained):
    ends = write(decoder, [Slow(clock)] * constrained)
    assert min(ends[0].lengths) > 2 + LENGTH // 2


def test_no_text_is_another_for_it(decoder, clock):
    beside = [each.text for each in write(decoder, [Slow(clock), None, None])]
    assert beside == [write(decoder, [constraint])[0].text for constraint in (Slow(clock), None, None)]
