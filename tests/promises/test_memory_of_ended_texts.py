"""The rows of a text are free as soon as it ends, however it ends, whatever of it is kept: no collector is needed."""

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from drafttree import Decoder, Engine
from drafttree.models import TreeCache
from drafttree.verifiers import VERIFIERS
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET, small
from testing.toy import ToyDrafter, ToyModel

PROMPT = [1, 2, 3]


class Watched(ToyModel):
    """A model that knows which of its caches somebody keeps."""

    def __init__(self) -> None:
        super().__init__(TARGET)
        self.caches: list[weakref.ref[TreeCache]] = []

    def new_cache(self, capacity: int) -> TreeCache:
        self.caches.append(weakref.ref(cache := super().new_cache(capacity)))
        return cache

    @property
    def kept(self) -> int:
        return sum(cache() is not None for cache in self.caches)


class WatchedDrafter(ToyDrafter):
    """A drafter that knows which of its sessions somebody keeps."""

    def __init__(self) -> None:
        super().__init__(DRAFT)
        self.sessions: list[weakref.ref] = []

    def start(self, prompt, capacity):
        session = super().start(prompt, capacity)
        self.drafts.clear()
        self.sessions.append(weakref.ref(session))
        return session


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def fails(input_ids, scores):
    if input_ids.shape[1] > 6:
        raise ArithmeticError("told to fail")
    return scores


def generate(decoder: Decoder) -> object:
    return decoder.generate(PROMPT, max_new_tokens=12)


def generate_list(decoder: Decoder) -> object:
    return decoder.generate([PROMPT] * 3, max_new_tokens=12, max_batch=2)


def stream(decoder: Decoder) -> object:
    return [*decoder.stream(PROMPT, max_new_tokens=12)]


def leave_stream(decoder: Decoder) -> object:
    return next(iter(decoder.stream(PROMPT, max_new_tokens=100)))


def fail(decoder: Decoder) -> object:
    """The traceback of an error that comes out of a lone text has its rows, as that of any call has its variables."""
    with suppress(ArithmeticError):
        return decoder.generate(PROMPT, max_new_tokens=12, logits_processor=[fails])
    return "failed"


def fail_in_list(decoder: Decoder) -> object:
    with suppress(ArithmeticError):
        return decoder.generate([PROMPT] * 3, max_new_tokens=12, max_batch=2, logits_processor=[fails])
    return "failed"


def submit(decoder: Decoder) -> object:
    return in_engine(decoder)


def cancel(decoder: Decoder) -> object:
    return in_engine(decoder, lambda handle: handle.cancel())


def fail_in_engine(decoder: Decoder) -> object:
    return in_engine(decoder, logits_processor=[fails])


def in_engine(decoder: Decoder, then: Callable = lambda handle: None, **options) -> object:
    """A handle that was read to its end, and the error if there was one."""
    with Engine(decoder, max_batch=2) as engine:
        handles = [engine.submit(PROMPT, max_new_tokens=40, **options) for _ in range(3)]
        for handle in handles:
            then(handle)
        errors = []
        for handle in handles:
            try:
                handle.result(30)
            except ArithmeticError as error:
                errors.append(error)
        engine.submit([1], max_new_tokens=1).result(30)  # behind it the loop no longer looks at the last of them
    return handles, errors


@pytest.mark.parametrize("policy", ["talon", "auto", "chain"])
@pytest.mark.parametrize(
    "write", [generate, generate_list, stream, leave_stream, fail, fail_in_list, submit, cancel, fail_in_engine]
)
def test_nothing_keeps_the_rows_of_a_text(write, policy):
    target, drafter = Watched(), WatchedDrafter()
    decoder = toy_decoder(target, drafter, small(policy))
    kept = write(decoder)
    assert kept is not None
    assert len(target.caches) >= 1
    assert (target.kept, sum(session() is not None for session in drafter.sessions)) == (0, 0)


@pytest.mark.parametrize("verifier", [None, "traversal"])
def test_nothing_keeps_the_random_numbers_of_a_text(verifier):
    decoder = toy_decoder(Watched(), WatchedDrafter(), small("chain"), verifier and VERIFIERS[verifier])
    request = decoder.new_request(PROMPT, max_new_tokens=12, temperature=1.0)
    numbers = weakref.ref(request.task.randomness)
    while not request.text.finish_reason:
        decoder.step(request)
    del request
    assert numbers() is None


def test_what_is_kept_for_reuse_is_bounded_and_goes_with_the_decoder():
    target = Watched()
    decoder = toy_decoder(target, WatchedDrafter(), small("talon"))
    with Engine(decoder, prefix_tokens=40) as engine:
        for place in range(12):
            engine.submit([place % 8, *PROMPT, place % 5], max_new_tokens=8, reuse_prefix=True).result(30)
    assert 0 < decoder.prefixes.tokens <= 40
    del engine, decoder
    assert target.kept == 0
