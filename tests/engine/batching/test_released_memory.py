"""Memory of ended texts is given back at once: nothing of them waits for the garbage collector."""

import gc
import random
import weakref
from collections import Counter

import pytest
import torch

import drafttree
from drafttree import Decoder
from drafttree.engine import Request
from drafttree.engine.batching import Engine, Handle
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.models import TreeCache
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
    """What the garbage collector finds, by kind."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    found = Counter(type(each).__name__ for each in gc.garbage if _is_ours(each))
    gc.garbage.clear()
    gc.collect()
    return found


def _is_ours(found: object) -> bool:
    return isinstance(found, torch.Tensor) or type(found).__module__.startswith("drafttree")


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


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", DRAFTERS)
def test_nothing_of_ended_texts_is_unreachable(kind):
    with Engine(tiny(kind), max_batch=4) as engine:
        write_all(engine, len(OPTIONS), kinds=[*OPTIONS])
        look_no_further_back()
        write_all(engine, TEXTS, kinds=[*OPTIONS])
        assert not unreachable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("kind", ["eagle3", "mixed"])
def test_nothing_of_ended_texts_is_unreachable_with_trained_drafters(kind):
    with Engine(embedded(kind), max_batch=4) as engine:
        write_all(engine, 4, kinds=["greedy", "sampled"])
        look_no_further_back()
        write_all(engine, TEXTS // 2, kinds=["greedy", "sampled"])
        assert not unreachable()


class Raises:
    """A logits processor or stopping criterion that fails in the middle of a text."""

    def __call__(self, input_ids, scores, **_):
        if input_ids.shape[1] >= 6:
            raise ArithmeticError("told to fail")
        return input_ids[:, -1] < 0 if scores is None else scores


def error_of(handle: Handle) -> ArithmeticError:
    with pytest.raises(ArithmeticError) as raised:
        handle.result(60)
    return raised.value


@pytest.mark.parametrize("option", ["logits_processor", "stopping_criteria"])
@pytest.mark.usefixtures("no_collector")
def test_the_error_of_a_text_keeps_none_of_its_memory(option):
    """Not even while somebody keeps the error, with its traceback."""
    made: list[weakref.ref[Request]] = []
    decoder = tiny("near")
    prepare = decoder.prepare

    def preparing(*arguments, **options):
        made.append(weakref.ref(request := prepare(*arguments, **options)))
        return request

    decoder.prepare = preparing
    with Engine(decoder, max_batch=4) as engine:
        failing = [engine.submit([1, 2, 3], max_new_tokens=9, **{option: [Raises()]}) for _ in range(6)]
        errors = [error_of(handle) for handle in failing]
        engine.submit([1], max_new_tokens=1).result(60)
    assert [ref() for ref in made] == [None] * 7
    assert all("in __call__" in str(error.__cause__) for error in errors)


@pytest.mark.usefixtures("no_collector")
def test_a_kept_handle_keeps_no_rows():
    caches: list[weakref.ref[TreeCache]] = []
    decoder = tiny("near")
    new_cache = decoder.target.new_cache

    def making(capacity):
        caches.append(weakref.ref(cache := new_cache(capacity)))
        return cache

    decoder.target.new_cache = making
    try:
        with Engine(decoder, max_batch=4) as engine:
            handles = [engine.submit([1, 2, 3], max_new_tokens=9) for _ in range(6)]
            assert all(handle.result(60).tokens for handle in handles)
            engine.submit([1], max_new_tokens=1).result(60)
    finally:
        del decoder.target.new_cache
    assert len(caches) >= 7
    assert [cache() for cache in caches] == [None] * len(caches)
