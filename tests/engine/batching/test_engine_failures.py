"""What fails ends alone or costs its round the drafts, memory that runs out costs time, and no other text changes."""

import logging
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pytest
import torch

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.engine.batching import Engine, Handle, loop
from drafttree.errors import ConfigError, EngineClosedError
from drafttree.models import TargetModel
from drafttree.policies import Chain, Talon
from helpers.drafter_kinds import drafter_of
from testing import families, random_cases, tiny
from testing.batches import watch_ends
from testing.costs import toy_decoder
from testing.held_model import FailingModel
from testing.small_trees import DRAFT, TARGET
from testing.toy import ToyDrafter, ToyModel

PROMPTS = [[place % 8, 1, 4, 1, 5][: 1 + place % 5] for place in range(7)]
OPTIONS = [{"temperature": 0.9, "seed": place} if place % 3 else {} for place in range(len(PROMPTS))]
LENGTH = 24
TREES = Talon(width=4, budget=12)
OUT_OF_MEMORY = {
    "Python's": MemoryError,
    "CUDA's": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "the CPU allocator's": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory"
    ),
}


def toys(target: ToyModel | None = None, drafter: ToyDrafter | None = None) -> Decoder:
    return toy_decoder(target or ToyModel(TARGET), drafter or ToyDrafter(DRAFT), TREES)


def near_llama() -> Decoder:
    near = deepcopy(module := tiny.build("llama"))
    with torch.no_grad():
        near.lm_head.weight += 0.05
    return toy_decoder(TargetModel(module), LanguageModelDrafter(TargetModel(near)), TREES)


def hybrid() -> Decoder:
    family = families.hybrids()[0]
    return toy_decoder(random_cases.target(family).target, random_cases.drafter(family, "near"), TREES)


def trained_head() -> Decoder:
    return toy_decoder(random_cases.target("embedded").target, drafter_of("eagle3"), TREES)


def alone(decoder: Decoder | None = None) -> list[list[int]]:
    """The texts of all prompts, each alone."""
    decoder, pairs = decoder or toys(), zip(PROMPTS, OPTIONS, strict=True)
    return [decoder.generate(prompt, max_new_tokens=LENGTH, **options).tokens for prompt, options in pairs]


def submit_all(engine: Engine) -> list[Handle]:
    """Submit all prompts, which come to the loop in one round, so that every run does the same."""
    with engine._thread.changed:
        pairs = zip(PROMPTS, OPTIONS, strict=True)
        return [engine.submit(prompt, max_new_tokens=LENGTH, **options) for prompt, options in pairs]


def tokens_of(handles: list[Handle]) -> list[list[int]]:
    return [handle.result(20).tokens for handle in handles]


class Raises:
    """A logits processor or stopping criterion that fails when the text has so many tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids, scores, **_):
        if input_ids.shape[1] >= self.length:
            raise ArithmeticError("told to fail", input_ids.shape[1])
        return input_ids[:, -1] < 0 if scores is None else scores


@pytest.mark.parametrize("length", [6, 12])
def test_a_logits_processor_that_fails_is_told_as_itself(length, caplog):
    """By name, and neither as a failure of the drafter nor as something that came of another request's error."""
    with Engine(toys(), max_batch=5) as engine:
        failing = engine.submit([1, 2, 3, 4, 5], max_new_tokens=LENGTH, logits_processor=[Raises(length)])
        submit_all(engine)
        with pytest.raises(ArithmeticError, match="told to fail") as told:
            failing.result(20)
    assert told.value.__notes__ == [f"raised by the logits processor Raises at position {told.value.args[1]}"]
    assert "in __call__" in str(told.value.__cause__)
    assert "another exception" not in str(told.value.__cause__)
    assert "drafter" not in caplog.text
    assert engine.metrics.drafter_failures == 0
    assert not any("failed" in (turn.reason or "") for turn in engine.metrics.rounds)


def test_a_logits_processor_that_fails_in_a_lone_text_is_told_by_name():
    with pytest.raises(ArithmeticError, match="told to fail") as told:
        toys().generate([1, 2, 3], max_new_tokens=LENGTH, logits_processor=[Raises(6)])
    assert told.value.__notes__ == ["raised by the logits processor Raises at position 6"]


def test_the_chunks_of_a_failing_request_come_before_its_error():
    read: list[int] = []
    with Engine(toys()) as engine:
        handle = engine.submit([1, 2, 3], max_new_tokens=LENGTH, stopping_criteria=[Raises(10)])
        with pytest.raises(ArithmeticError):
            read.extend(token for chunk in handle for token in chunk.tokens)
    assert read
    assert read == toys().generate([1, 2, 3], max_new_tokens=LENGTH).tokens[: len(read)]


class FailingDrafter(ToyDrafter):
    """A drafter some of whose sessions' calls fail, counted over all of them."""

    def __init__(self, name: str, fails: Callable[[int], bool]) -> None:
        super().__init__(DRAFT)
        self.name, self.fails, self.calls = name, fails, 0

    def start(self, prompt, capacity):
        session = super().start(prompt, capacity)
        call = getattr(session, self.name)

        def failing(*arguments):
            self.calls += 1
            if self.fails(self.calls):
                raise ArithmeticError("the draft broke")
            return call(*arguments)

        setattr(session, self.name, failing)
        return session


@pytest.mark.parametrize("name", ["draft_root", "draft_level"])
@pytest.mark.parametrize("fails", [lambda call: call == 3, lambda call: call % 5 == 0], ids=["once", "often"])
def test_a_failing_drafter_costs_its_round_the_drafts(name, fails):
    """From the level on that it fails at."""
    with Engine(toys(drafter=FailingDrafter(name, fails)), budget=6) as engine:
        assert tokens_of(submit_all(engine)) == alone()
    metrics = engine.metrics
    assert metrics.drafter_failures > 0
    assert metrics.failed == 0
    broken = [turn for turn in metrics.rounds if turn.reason == "the drafter failed: the draft broke"]
    assert len(broken) == metrics.drafter_failures
    assert name == "draft_level" or all(turn.drafted == 0 for turn in broken)
    assert metrics.drafted > 0


@pytest.mark.parametrize("name", ["commit", "prefill", "start"])
def test_a_drafter_that_fails_between_rounds_ends_the_drafts_of_one_request(name):
    """In `commit`, in `prefill` or where a request begins."""
    drafter = FailingDrafter(name if name != "start" else "draft_root", lambda call: name != "start" and call == 3)
    if name == "start":
        begin, begun = drafter.start, []
        drafter.start = lambda *arguments: begun.append(arguments) or (begin(*arguments) if len(begun) != 2 else 1 / 0)
    with Engine(toys(drafter=drafter), budget=6) as engine:
        assert tokens_of(submit_all(engine)) == alone()
    assert engine.metrics.drafter_failures == 1
    assert engine.metrics.failed == 0
    assert engine.metrics.drafted > 0


def test_a_failing_drafter_is_logged(caplog):
    with caplog.at_level(logging.WARNING, "drafttree"):
        toys(drafter=FailingDrafter("draft_root", lambda call: call == 2)).generate(PROMPTS, max_new_tokens=LENGTH)
    assert "the drafter failed, so texts go on without drafts: ArithmeticError: the draft broke" in caplog.text


@pytest.mark.few(1)
@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_drafter_with_a_cache_that_fails_in_a_packed_pass_changes_no_text(every, monkeypatch):
    """The rows that the broken round has left in the drafter's caches do not stay there."""
    decoder = near_llama()
    expected = alone(decoder)
    run, passes = TargetModel.forward, []

    def failing(model, *arguments, **options):
        output = run(model, *arguments, **options)
        if model is not decoder.target:
            passes.append(model)
            if len(passes) % every == 0:
                raise ArithmeticError("the draft broke")
        return output

    monkeypatch.setattr(TargetModel, "forward", failing)
    with Engine(decoder, budget=6) as engine:
        assert tokens_of(submit_all(engine)) == expected
    assert engine.metrics.drafter_failures > 0
    assert engine.metrics.failed == 0


@pytest.mark.parametrize("error", OUT_OF_MEMORY.values(), ids=OUT_OF_MEMORY)
def test_memory_that_runs_out_halves_the_batch_and_changes_no_text(error):
    passes = {12, 13}
    target = FailingModel(TARGET, error, passes)
    with Engine(toys(target)) as engine:
        assert tokens_of(submit_all(engine)) == alone()
    assert target.raised == len(passes)
    assert engine.metrics.preempted > 0
    assert engine.metrics.failed == 0


def test_the_youngest_wait_again_and_the_oldest_go_on(monkeypatch):
    ended = watch_ends(monkeypatch)
    with Engine(toys(FailingModel(TARGET, MemoryError, {30}))) as engine, engine._thread.changed:
        handles = [engine.submit([place, 1], max_new_tokens=LENGTH) for place in range(4)]
    assert engine.metrics.preempted == 2
    assert {*ended[:2]} == {*handles[:2]}
    assert {turn.batch for turn in engine.metrics.rounds} >= {4, 2}


def test_kept_beginnings_are_dropped_before_a_single_request_fails():
    target = FailingModel(TARGET, MemoryError)
    decoder = toys(target)
    with Engine(decoder) as engine:
        engine.submit([1, 2, 3], max_new_tokens=LENGTH, reuse_prefix=True).result(20)
        assert decoder.prefixes.tokens > 0
        target.fails_at = frozenset({target.passes + 3})
        again = engine.submit([3, 2, 1], max_new_tokens=LENGTH, reuse_prefix=False).result(20)
    assert (target.raised, engine.metrics.failed, decoder.prefixes.tokens) == (1, 0, 0)
    assert again.tokens == toys().generate([3, 2, 1], max_new_tokens=LENGTH).tokens


def test_memory_that_never_suffices_ends_all_requests_and_the_engine_goes_on():
    target = FailingModel(TARGET, MemoryError, range(8, 200))
    with Engine(toys(target)) as engine:
        for handle in submit_all(engine):
            with pytest.raises(MemoryError):
                handle.result(20)
        target.fails_at = frozenset()
        assert tokens_of(submit_all(engine)) == alone()


@pytest.mark.parametrize("calls", [{2}, {5}], ids=str)
def test_memory_that_runs_out_for_a_new_request_changes_no_text(calls, monkeypatch):
    target, made = ToyModel(TARGET), []
    new_cache = target.new_cache

    def failing(capacity):
        if capacity > 1:
            made.append(capacity)
            if len(made) in calls:
                raise MemoryError
        return new_cache(capacity)

    with Engine(toys(target)) as engine:
        monkeypatch.setattr(target, "new_cache", failing)
        assert tokens_of(submit_all(engine)) == alone()
    assert engine.metrics.failed == 0


@pytest.mark.few(1)
@pytest.mark.parametrize("make", [near_llama, hybrid, trained_head])
def test_texts_do_not_change_where_memory_runs_out_in_a_packed_pass_of_a_real_model(make, monkeypatch):
    """A pass over prompts, and one over trees."""
    decoder = make()
    expected, target = alone(decoder), decoder.target
    run, passes = target.forward, []

    def failing(segments, **options):
        output = run(segments, **options)
        if segments[0].cache.recurrent.is_reading:  # recurrent layers read a prompt whole, before its text is written
            return output
        passes.append(len(segments))
        if len(passes) in (2, 9):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return output

    monkeypatch.setattr(target, "forward", failing)
    with Engine(decoder, budget=4) as engine:
        assert tokens_of(submit_all(engine)) == expected
    assert engine.metrics.preempted >= 4
    assert engine.metrics.accepted > 0


class Undecided(Chain):
    """Answers with a mask of no layer."""

    def expand(self, layer):
        return np.ones(7, dtype=bool)


def test_what_a_policy_answers_wrongly_is_an_error_of_a_list_too():
    with pytest.raises(ConfigError, match=r"Undecided\.expand returns bool \[7\]"):
        toys().with_policy(Undecided(depth=3)).generate([[1, 2, 3], [2, 3]], max_new_tokens=5)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_engine_that_dies_tells_all_handles_and_takes_no_more():
    engine = Engine(toys(FailingModel(TARGET, lambda: SystemExit("killed"), {10})))
    for handle in submit_all(engine):
        with pytest.raises(EngineClosedError, match="the engine died"):
            handle.result(20)
    with pytest.raises(EngineClosedError, match="closed"):
        engine.submit([1])
    engine.close()


def test_logprobs_of_prompts_that_are_read_in_parts_and_again_stay_the_same(monkeypatch):
    decoder, prompt = toys(), [3, 1, 4, 1, 5, 2, 6]
    expected = decoder.generate(prompt, max_new_tokens=LENGTH, prompt_logprobs=True).prompt_logprobs
    monkeypatch.setattr(loop, "LONGEST_PART", 2)
    target = FailingModel(TARGET, MemoryError, fails_at=(5,))
    with Engine(toys(target), max_batch=2) as engine:
        with engine._thread.changed:
            handles = [engine.submit(prompt, max_new_tokens=LENGTH, prompt_logprobs=True) for _ in range(2)]
        assert [handle.result(20).prompt_logprobs for handle in handles] == [pytest.approx(expected)] * 2
    assert engine.metrics.preempted
