"""Memory of ended texts is given back at once: nothing of them waits for the garbage collector."""

import gc
import random
from collections import Counter

import pytest
import torch

import drafttree
from drafttree import Decoder
from drafttree.engine.batching import Engine
from drafttree.evaluation.toy_models import TOY_COSTS
from helpers.drafter_kinds import drafter_of
from testing import random_cases
from testing.batches import OPTIONS, TOKENIZER

TEXTS = 28
DRAFTERS = ["none", "near", "lookup", "suffix"]


@pytest.fixture
def no_collector():
    """Keeps the garbage collector from running by itself."""
    gc.disable()
    yield
    gc.unfreeze()
    gc.enable()


def look_no_further_back() -> None:
    """Let the garbage collector find nothing that is there by now, which may be of engines of other tests that end."""
    gc.collect()
    gc.freeze()


def unreachable() -> Counter[str]:
    """What the garbage collector frees, by kind. `gc.garbage` would lack cycles that a generator's end has broken."""
    before = ours()
    gc.collect()
    return before - ours()


def ours() -> Counter[str]:
    return Counter(type(each).__name__ for each in gc.get_objects() if _is_ours(each))


def _is_ours(found: object) -> bool:
    return issubclass(type(found), torch.Tensor) or type(found).__module__.startswith("drafttree")


def tiny(kind: str) -> Decoder:
    target, drafter = random_cases.target("llama").target, random_cases.drafter("llama", kind)
    decoder = Decoder(target, drafter, drafttree.policies.Auto(), tokenizer=TOKENIZER, eos=(0,))
    return decoder.with_costs(TOY_COSTS)


def embedded(kind: str) -> Decoder:
    decoder = random_cases.target("embedded").with_drafter(drafter_of(kind))
    return decoder.with_policy(drafttree.policies.Auto()).with_costs(TOY_COSTS)


def write_all(engine: Engine, count: int, *, kinds: list[str]) -> None:
    """Write texts with all kinds of options, some of them to be cancelled."""
    rng = random.Random(0)
    for place in range(count):
        options = {"max_new_tokens": 12, **OPTIONS[kinds[place % len(kinds)]](rng)}
        handle = engine.submit([rng.randrange(1, 20) for _ in range(5)], **options)
        if place % 9 == 8:
            handle.cancel()
        handle.result(60)
    engine.submit([1], max_new_tokens=1).result(60)  # the thread no longer looks at the last of them


@pytest.mark.few(1)
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", DRAFTERS)
def test_nothing_of_ended_texts_is_unreachable(kind):
    with Engine(tiny(kind), max_batch=4) as engine:
        write_all(engine, len(OPTIONS), kinds=[*OPTIONS])
        look_no_further_back()
        write_all(engine, TEXTS, kinds=[*OPTIONS])
        assert not unreachable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", [pytest.param("eagle3", marks=pytest.mark.slow), "mixed"])
def test_nothing_of_ended_texts_is_unreachable_with_trained_drafters(kind):
    with Engine(embedded(kind), max_batch=4) as engine:
        write_all(engine, 4, kinds=["greedy", "sampled"])
        look_no_further_back()
        write_all(engine, TEXTS // 2, kinds=["greedy", "sampled"])
        assert not unreachable()
