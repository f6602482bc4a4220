"""A text is a function of its prompt, its options and its seed: whoever drafts it, is beside it, or fails.

Every case is an engine with some requests, parts that fail in some of their calls, and requests that end early. What a
request asks for is compared with plain decoding of it alone, by a model and an engine that nothing happens to.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from drafttree import Decoder, Engine, Generation, Handle
from drafttree.drafters import Drafter, MixedDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.policies import POLICIES, TreePolicy
from drafttree.verifiers import VERIFIERS, Block, Greedy, PointMass, Traversal
from testing.costs import toy_decoder
from testing.held_model import FailingModel
from testing.small_trees import SMALL, TARGET, VOCAB, small
from testing.toy import PieceTokenizer, ToyDrafter, greedy_text

LETTERS = PieceTokenizer([bytes([code]) for code in b"abcdefgh"])
BEGINNING = [3, 1, 4, 1, 5, 2, 6]
PATIENCE = 10


class BrokenError(Exception):
    """What parts raise that fail."""


End = Generation | BrokenError | MemoryError
"""How a text ends: where memory runs out for a text that has no company, with that error."""


class Faults:
    """Calls of one part, counted over all its sessions, some of which fail."""

    def __init__(self, *fail: tuple[int, type[Exception]]) -> None:
        self.fail, self.calls = dict(fail), 0

    def __call__(self) -> None:
        self.calls += 1
        if error := self.fail.get(self.calls):
            raise error("told to fail")


class FaultyDrafter(ToyDrafter):
    """A toy drafter whose sessions' calls fail where they are told to."""

    def __init__(self, noise: float, context: int | None, faults: dict[str, Faults]) -> None:
        super().__init__(TARGET.blurred(noise), context=context)
        self.faults = faults

    def start(self, prompt: list[int], capacity: int):
        session = super().start(prompt, capacity)
        for name, faults in self.faults.items():
            setattr(session, name, _failing(getattr(session, name), faults))
        return session


def _failing(call: Callable[..., Any], faults: Faults) -> Callable[..., Any]:
    def failing(*arguments: Any) -> Any:
        faults()
        return call(*arguments)

    return failing


class Raises:
    """A logits processor that fails at some length of the text."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] >= self.length:
            raise BrokenError("told to fail")
        return scores


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        prompt: token ids.
        options: of its text.
        leaves: the number of chunks behind which it is cancelled, if it is.
        fails: the length at which a processor of its own fails, if it does.
        iterated: its end is found by reading its chunks.
    """

    prompt: list[int]
    options: dict[str, Any]
    leaves: int | None = None
    fails: int | None = None
    iterated: bool = False


@dataclass(frozen=True)
class Scenario:
    """An engine, the parts it has, and what is asked of it.

    Attributes:
        policy: name of a small one.
        drafter: the kind of drafter.
        noise: how much the toy drafter differs from the target.
        context: tokens that the toy drafter can read, None for any number.
        fails: per call of a drafter's session the calls that fail, and how.
        passes: passes of the target in which memory runs out.
        engine: options of the engine.
        asked: the requests.
    """

    policy: str
    drafter: str
    noise: float
    context: int | None
    fails: dict[str, list[tuple[int, type[Exception]]]]
    passes: list[int]
    engine: dict[str, Any]
    asked: list[Asked] = field(default_factory=list)

    def decoder(self) -> Decoder:
        """The decoder of these parts."""
        target = FailingModel(TARGET, MemoryError, self.passes)
        toy = FaultyDrafter(self.noise, self.context, {name: Faults(*fail) for name, fail in self.fails.items()})
        drafters: dict[str, Callable[[], Drafter | None]] = {
            "toy": lambda: toy,
            "lookup": lambda: PromptLookupDrafter(VOCAB),
            "suffix": lambda: SuffixDrafter(VOCAB, target.device),
            "mixed": lambda: MixedDrafter(PromptLookupDrafter(VOCAB), toy),
        }
        return made_of(target, drafters[self.drafter](), small(self.policy))


def made_of(target: FailingModel, drafter: Drafter | None = None, policy: TreePolicy | None = None) -> Decoder:
    return toy_decoder(target, drafter, policy or small("talon"), tokenizer=LETTERS, eos=(7,))


def ends_behind_a_three(input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
    return input_ids[:, -1] == 3


ERRORS = st.sampled_from([BrokenError, MemoryError])
OPTIONS = {
    "temperature": st.sampled_from([0.5, 1.0, 2.0]),
    "top_k": st.integers(2, 5),
    "repetition_penalty": st.sampled_from([0.8, 1.5]),
    "no_repeat_ngram_size": st.integers(2, 3),
    "stop": st.sampled_from(["b", "cd", ["ea", "h"], ["a", "ce", "fd", "gb"]]),
    "stopping_criteria": st.just([ends_behind_a_three]),
    "logprobs": st.integers(0, 3),
    "ignore_eos": st.booleans(),
    "reuse_prefix": st.booleans(),
    "speculate": st.booleans(),
    "prompt_logprobs": st.just(True),
    "draft_temperature": st.sampled_from([0.3, 2.0]),
}
PROMPTS = st.builds(
    lambda shared, rest: [*BEGINNING[:shared], *rest],
    st.integers(0, len(BEGINNING)),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
)
OPTIONS_OF_A_TEXT = st.builds(
    lambda always, others: always | others,
    st.fixed_dictionaries({"max_new_tokens": st.integers(1, 20), "seed": st.integers(0, 2**40)}),
    st.lists(st.sampled_from([*OPTIONS]), max_size=3, unique=True)
    .filter(lambda names: not {"reuse_prefix", "prompt_logprobs"} <= {*names})
    .flatmap(lambda names: st.fixed_dictionaries({name: OPTIONS[name] for name in names})),
)
ASKED = st.builds(
    Asked,
    PROMPTS,
    OPTIONS_OF_A_TEXT,
    leaves=st.none() | st.none() | st.integers(0, 3),
    fails=st.none() | st.none() | st.integers(2, 16),
    iterated=st.booleans(),
)
CASES = st.builds(
    Scenario,
    policy=st.sampled_from([name for name in SMALL if name in POLICIES]),
    drafter=st.sampled_from(["toy", "toy", "mixed", "lookup", "suffix"]),
    noise=st.sampled_from([0.0, 0.5, 2.0]),
    context=st.none() | st.integers(4, 24),
    fails=st.dictionaries(
        st.sampled_from(["draft_root", "draft_level", "commit", "prefill"]),
        st.lists(st.tuples(st.integers(1, 12), ERRORS), min_size=1, max_size=3),
        max_size=2,
    ),
    passes=st.lists(st.integers(1, 40), max_size=3),
    engine=st.fixed_dictionaries(
        {"max_batch": st.integers(1, 5)},
        optional={
            "budget": st.integers(1, 9),
            "max_kv_tokens": st.integers(95, 220),
            "prefix_tokens": st.sampled_from([0, 12, 40]),
        },
    ),
    asked=st.lists(ASKED, min_size=1, max_size=6),
)


@settings(max_examples=20)
@given(drawn=CASES)
def test_every_text_is_its_own(drawn: Scenario):
    plain = made_of(FailingModel(TARGET, MemoryError)).plain()
    decoder = drawn.decoder()
    with Engine(decoder, **drawn.engine) as engine:
        handles = [engine.submit(each.prompt, **options(each)) for each in drawn.asked]
        for each, handle in zip(drawn.asked, handles, strict=True):
            if each.leaves is not None:
                leave(handle, each.leaves)
        ends = [end(handle, each) for each, handle in zip(drawn.asked, handles, strict=True)]
        stop_failing(decoder)
        later = engine.submit([1, 2], max_new_tokens=3, ignore_eos=True).result(PATIENCE)
        assert later.tokens == greedy_text(TARGET, [1, 2], 3)
    for each, found in zip(drawn.asked, ends, strict=True):
        event(compare(each, found, plain))
    assert engine.kv_cache_usage == 0
    counts = Counter(found.finish_reason if isinstance(found, Generation) else type(found) for found in ends)
    out_of_memory = [error for fails in drawn.fails.values() for _, error in fails if error is MemoryError]
    assert counts[MemoryError] <= len(drawn.passes) + len(out_of_memory)
    assert engine.metrics.failed == counts[MemoryError] + counts[BrokenError]
    assert engine.metrics.cancelled == counts["cancelled"]


def stop_failing(decoder: Decoder) -> None:
    decoder.target.fails_at = frozenset()
    for part in (decoder.drafter, getattr(decoder.drafter, "model", None)):
        for faults in getattr(part, "faults", {}).values():
            faults.fail.clear()


def options(asked: Asked) -> dict[str, Any]:
    return asked.options | ({} if asked.fails is None else {"logits_processor": [Raises(asked.fails)]})


def leave(handle: Handle, chunks: int) -> None:
    """Cancel a text behind so many chunks."""
    with suppress(BrokenError, MemoryError):
        for _ in zip(range(chunks), handle, strict=False):
            pass
    handle.cancel()


def end(handle: Handle, asked: Asked) -> End:
    """How a text ends; its chunks are the whole, or the rest of it where some were read before."""
    try:
        chunks = [*handle] if asked.iterated else []
        assert not asked.iterated or handle.error is None, "it ends without its error"
        found = handle.result(PATIENCE)
    except (BrokenError, MemoryError) as error:
        return error
    if asked.iterated:
        tokens = [token for chunk in chunks for token in chunk.tokens]
        assert tokens == found.tokens[len(found.tokens) - len(tokens) if asked.leaves else 0 :]
        assert found.text.endswith("".join(chunk.text for chunk in chunks))
        assert [*handle] == []
    return found


def compare(asked: Asked, found: End, plain: Decoder) -> str:
    """Compare an end with that of plain decoding alone; how it ended."""
    if isinstance(found, MemoryError):
        return "out of memory, alone"
    try:
        whole = plain.generate(asked.prompt, **options(asked) | {"reuse_prefix": False})
    except BrokenError:
        whole = None
    if isinstance(found, BrokenError):
        assert whole is None, "it fails where plain decoding does not"
        return "failed"
    if found.finish_reason == "cancelled":
        assert asked.leaves is not None
        without = {name: value for name, value in asked.options.items() if name != "stop"}
        beginning = plain.generate(asked.prompt, **without)
        assert found.tokens == beginning.tokens[: len(found.tokens)]
        return "cancelled"
    assert whole is not None, "it does not fail where plain decoding does"
    assert (found.tokens, found.text, found.finish_reason) == (whole.tokens, whole.text, whole.finish_reason)
    assert found.logprobs == (whole.logprobs and pytest.approx(whole.logprobs, abs=1e-5))
    assert found.top_logprobs == (whole.top_logprobs and [pytest.approx(row, abs=1e-5) for row in whole.top_logprobs])
    assert found.prompt_logprobs == (whole.prompt_logprobs and pytest.approx(whole.prompt_logprobs, abs=1e-5))
    assert len(found.drafted) == len(found.tokens)
    assert sum(found.drafted) == sum(round_.accepted for round_ in found.metrics.rounds)
    if found.finish_reason == "stop" and "stopping_criteria" in asked.options:
        assert 3 not in found.tokens[:-1]
    if not {"temperature", "repetition_penalty", "no_repeat_ngram_size"} & asked.options.keys():
        assert found.tokens == greedy_text(TARGET, asked.prompt, len(found.tokens))
    return found.finish_reason


@settings(max_examples=8)
@given(drawn=CASES, options=OPTIONS_OF_A_TEXT)
def test_texts_of_a_list(drawn: Scenario, options: dict[str, Any]):
    """With one seed for all, in one call and each as a stream."""
    drawn = replace(drawn, passes=[], fails={})
    prompts, plain = [each.prompt for each in drawn.asked], made_of(FailingModel(TARGET, MemoryError)).plain()
    expected = [plain.generate(prompt, **options | {"reuse_prefix": False}) for prompt in prompts]
    found = drawn.decoder().generate(prompts, max_batch=drawn.engine["max_batch"], **options)
    streams = [[*drawn.decoder().stream(prompt, **options)] for prompt in prompts]
    for whole, text, chunks in zip(expected, found, streams, strict=True):
        assert (text.tokens, text.text, text.finish_reason) == (whole.tokens, whole.text, whole.finish_reason)
        assert [token for chunk in chunks for token in chunk.tokens] == whole.tokens
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert [chunk.finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + [whole.finish_reason]


@pytest.mark.few(1)
@pytest.mark.parametrize("verifier", [each for each in VERIFIERS.values() if each.lossless and each is not Greedy])
@pytest.mark.parametrize("policy", ["talon", "auto"])
def test_a_seed_repeats_a_text(policy, verifier):
    """Whatever draws it, also behind other texts; other seeds give other texts."""

    def fresh() -> Decoder:
        grows = small("chain" if verifier is Block and policy == "talon" else policy)
        decoder = made_of(FailingModel(TARGET, MemoryError), ToyDrafter(TARGET.blurred(1.0)), grows)
        return decoder.with_verifier(verifier)

    options = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    used = fresh()
    texts = [used.generate([3], seed=seed, **options).tokens for seed in range(12)]
    assert texts == [fresh().generate([3], seed=seed, **options).tokens for seed in range(12)]
    assert texts[::-1] == [used.generate([3], seed=seed, **options).tokens for seed in reversed(range(12))]
    assert len({*map(tuple, texts)}) > 9


@pytest.mark.few(7)
@pytest.mark.parametrize("sampled", [{}, {"temperature": 1.0, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("policy", SMALL)
def test_a_processor_that_knows_one_text_fails_nothing(policy, sampled):
    """As a trie does that looks up what was written: it raises for every other text that is drafted."""
    plain = made_of(FailingModel(TARGET, MemoryError)).plain()
    whole = [3, *plain.generate([3], max_new_tokens=20, ignore_eos=True, **sampled).tokens]

    def knows(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if any(row != whole[: len(row)] for row in input_ids.tolist()):
            raise KeyError(input_ids)
        return scores

    drafting = made_of(FailingModel(TARGET, MemoryError), ToyDrafter(TARGET.blurred(1.0)), small(policy))
    options = {"max_new_tokens": 20, "ignore_eos": True, "logits_processor": [knows], **sampled}
    assert drafting.generate([3], **options).tokens == whole[1:]
    assert [text.tokens for text in drafting.generate([[3], [3]], **options)] == [whole[1:]] * 2


@pytest.mark.parametrize("verifier", [None, PointMass, Traversal])
def test_texts_without_a_seed_differ_and_tell_theirs(verifier):
    decoder = made_of(FailingModel(TARGET, MemoryError), ToyDrafter(TARGET.blurred(1.0))).with_verifier(verifier)
    options = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True}
    texts = [decoder.generate([3], **options) for _ in range(8)]
    assert len({tuple(text.tokens) for text in texts}) > 5
    assert [decoder.generate([3], seed=text.seed, **options).tokens for text in texts] == [
        text.tokens for text in texts
    ]


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_a_stream_that_is_closed_is_a_beginning(chunks):
    decoder = made_of(FailingModel(TARGET, MemoryError), ToyDrafter(TARGET.blurred(1.0)))
    whole = decoder.generate([3], max_new_tokens=40, ignore_eos=True).tokens
    stream = decoder.stream([3], max_new_tokens=40, ignore_eos=True)
    read = [token for _, chunk in zip(range(chunks), stream, strict=False) for token in chunk.tokens]
    stream.close()
    assert list(stream) == []
    assert read == whole[: len(read)]
    assert len(read) < len(whole)
    assert decoder.generate([3], max_new_tokens=40, ignore_eos=True).tokens == whole


@pytest.mark.parametrize("passes", [3, 6])
def test_ctrl_c_in_a_stream_comes_out_behind_what_was_written(passes):
    target = FailingModel(TARGET, MemoryError)
    decoder = made_of(target, ToyDrafter(TARGET.blurred(1.0)))
    whole = decoder.generate([3], max_new_tokens=40, ignore_eos=True).tokens
    target.interrupt_at = target.passes + passes
    read: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        read.extend(
            token for chunk in decoder.stream([3], max_new_tokens=40, ignore_eos=True) for token in chunk.tokens
        )
    assert read
    assert read == whole[: len(read)]
    assert decoder.generate([3], max_new_tokens=40, ignore_eos=True).tokens == whole


@pytest.mark.few(2)
@pytest.mark.parametrize("prompt", [[7, 1], [2, 7, 3, 4, 5], [3, 7]], ids=str)
@pytest.mark.parametrize("policy", ["auto", "talon"])
def test_a_pass_that_one_text_breaks_ends_no_other(policy, prompt):
    """Token 7 breaks every pass that has it; the others never write it."""
    never = {"max_new_tokens": 16, "suppress_tokens": [7]}
    prompts = [[1, 2], [3], [5, 0, 1], [2]]
    expected = [made_of(FailingModel(TARGET, MemoryError)).plain().generate(each, **never).tokens for each in prompts]
    target = FailingModel(TARGET, BrokenError, poison=7)
    with Engine(made_of(target, ToyDrafter(TARGET.blurred(1.0)), small(policy))) as engine:
        handles = [engine.submit(each, **never) for each in prompts]
        poisoned = engine.submit(prompt, **never)
        later = [engine.submit(each, **never) for each in prompts]
        with pytest.raises(BrokenError):
            poisoned.result(PATIENCE)
        assert [handle.result(PATIENCE).tokens for handle in (*handles, *later)] == expected * 2


def test_texts_that_come_first_end_first():
    with Engine(made_of(FailingModel(TARGET, MemoryError)), max_batch=1) as engine:
        handles = [engine.submit([place], max_new_tokens=6, ignore_eos=True) for place in range(6)]
        for place, handle in enumerate(handles):
            handle.result(PATIENCE)
            assert all(earlier.done for earlier in handles[:place])
