"""Many texts of one group take turns with other requests, and pausing changes no text."""

import pytest
import torch

from drafttree import Decoder, Generation
from drafttree.engine.batching import Engine
from drafttree.engine.generation import Reader
from drafttree.engine.request import RequestContext
from drafttree.policies import Talon
from helpers.drafter_kinds import drafter_of
from testing import families, random_cases
from testing.costs import toy_decoder
from testing.held_model import FailingModel, HeldModel
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter, ToyModel

TREES = Talon(width=4, budget=12)
MANY, LENGTH, ROOM = 12, 40, 4


class Ends(Reader):
    """Notes the end of a text in a list of all."""

    def __init__(self, name: str, ends: list[tuple[str, list[int]]]) -> None:
        self.name, self.ends = name, ends

    def end(self, ended) -> None:
        assert isinstance(ended, Generation)
        self.ends.append((self.name, ended.tokens))


def toys(target: ToyModel | None = None) -> Decoder:
    return toy_decoder(target or ToyModel(TARGET), ToyDrafter(DRAFT), TREES)


def near_llama() -> Decoder:
    return toy_decoder(random_cases.target("llama").target, random_cases.drafter("llama", "near"), TREES)


def hybrid() -> Decoder:
    family = families.hybrids()[0]
    return toy_decoder(random_cases.target(family).target, random_cases.drafter(family, "near"), TREES)


def trained_head() -> Decoder:
    return toy_decoder(random_cases.target("embedded").target, drafter_of("eagle3"), TREES)


def run_crowd(decoder: Decoder, late: int = 3) -> list[tuple[str, list[int]]]:
    """The ends, in order, of a group of many texts and of a few single tokens that are asked for while those run."""
    loop, ends = decoder.batch_loop(ROOM, budget=6), []

    def add(name: str, prompt: list[int], length: int, group: object) -> None:
        request = decoder.prepare(prompt, RequestContext(group=group), max_new_tokens=length)
        request.give_to(Ends(name, ends))
        loop.add(request)

    for place in range(MANY):
        add(f"many {place}", [place % 5, 1, 2], LENGTH, "many")
    for place in range(late):
        for _ in range(3):
            loop.step()
        add(f"single {place}", [3, place], 1, object())
    while loop.busy:
        loop.step()
    assert loop.memory.reserved == 0
    return ends


def expected(decoder: Decoder, late: int = 3) -> dict[str, list[int]]:
    many = {f"many {place}": decoder.generate([place % 5, 1, 2], max_new_tokens=LENGTH).tokens for place in range(MANY)}
    singles = {f"single {place}": decoder.generate([3, place], max_new_tokens=1).tokens for place in range(late)}
    return {**many, **singles}


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [toys, pytest.param(near_llama, marks=pytest.mark.slow), hybrid, trained_head])
def test_texts_that_pause_are_those_of_each_alone(make):
    assert dict(run_crowd(make())) == expected(make())


@pytest.mark.few(1)
@pytest.mark.parametrize("passes", [{8}, {12, 13}, {16, 24}], ids=str)
def test_memory_that_runs_out_while_texts_pause_changes_no_text(passes):
    target = FailingModel(TARGET, lambda: torch.OutOfMemoryError("no room"), passes)
    assert dict(run_crowd(toys(target))) == expected(toys())
    assert target.raised == len(passes)


def test_a_prompt_is_not_read_behind_all_prompts_of_a_group():
    """Prompts of a group are as long as a pass, and the engine has room for all of them."""
    decoder = toys(ToyModel(TARGET))
    loop, ends = decoder.batch_loop(8), []
    for _ in range(7):
        request = decoder.prepare([1, 2] * 300, RequestContext(group="long"), max_new_tokens=LENGTH)
        request.give_to(Ends("long", ends))
        loop.add(request)
    request = decoder.prepare([3, 4], max_new_tokens=1)
    request.give_to(Ends("short", ends))
    loop.add(request)
    for _ in range(4):
        loop.step()
    assert [name for name, _ in ends] == ["short"]


def test_an_engine_takes_the_group_of_a_text():
    model = HeldModel(TARGET)
    model.go.clear()
    with Engine(toys(model), max_batch=2) as engine:
        many = [engine.submit([place, 1], max_new_tokens=LENGTH, group="many") for place in range(6)]
        assert model.began.wait(20)
        single = engine.submit([3], max_new_tokens=1)
        done = []
        single.listen(lambda: done.append([handle.done for handle in many]))
        model.go.set()
        single.result(20)
    assert done[-1] == [False] * 6
