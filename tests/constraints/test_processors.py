"""Logits processors at every node: the text equals that of plain decoding with the same processors."""

import math

import pytest
import torch
from transformers import (
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)
from transformers.generation.logits_process import LogitNormalization

from drafttree import Decoder
from drafttree.drafters import PromptLookupDrafter
from drafttree.errors import ConfigError, ModelError
from drafttree.policies import Chain, DynaTree, Eagle, OptTree, Talon, Template
from drafttree.verifiers import RRSw, Traversal
from testing.toy import Script, Table, ToyDrafter, ToyModel

VOCAB, PROMPT, LENGTH, EOS = 8, [2, 1, 3], 24, 7
TARGET = Table(VOCAB, seed=61, scale=1.0)
DRAFT = TARGET.blurred(0.5)


class Alternates(LogitsProcessor):
    """Allows even tokens after odd ones, and prefers the token before last."""

    def __call__(self, input_ids, scores):
        odd = input_ids[:, -1:] % 2 == 1
        even = torch.arange(scores.shape[1]) % 2 == 0
        scores = scores.masked_fill(odd & ~even, -torch.inf)
        return scores.scatter_add(1, input_ids[:, -2:-1], torch.ones(len(scores), 1))


PROCESSORS = {
    "repetition penalty": RepetitionPenaltyLogitsProcessor(1.3),
    "no repeated 3-gram": NoRepeatNGramLogitsProcessor(3),
    "bad words": NoBadWordsLogitsProcessor([[4], [1, 5], [0, 2, 6]], eos_token_id=EOS),
    "min length": MinLengthLogitsProcessor(len(PROMPT) + 15, EOS, device="cpu"),
    "sequence bias": SequenceBiasLogitsProcessor([[[6], -2.0], [[1, 2], 3.0], [[5, 0, 3], 2.0]]),
    "forced eos": ForcedEOSTokenLogitsProcessor(len(PROMPT) + 10, EOS, device="cpu"),
    "of one's own": Alternates(),
}
POLICIES = {
    "chain": Chain(depth=4),
    "binary": Template(tree="binary-2"),
    "dynatree": DynaTree(base_depth=3, max_depth=4, budget=20),
    "talon": Talon(width=3, margin=0.2, budget=12),
    "eagle": Eagle(depth=3, top_k=3, budget=10),
    "opt-tree": OptTree(threshold=0.2, depth=4, budget=10),
}
SETS = {name: LogitsProcessorList([processor]) for name, processor in PROCESSORS.items()} | {
    "several": LogitsProcessorList([PROCESSORS[name] for name in ("repetition penalty", "bad words", "of one's own")])
}


def decoder(policy=None, verifier=None) -> Decoder:
    return Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(DRAFT, VOCAB), policy, verifier, eos=(EOS,))


def sequential(processors: LogitsProcessorList) -> list[int]:
    """Greedy decoding one token at a time, the processors given the whole text."""
    tokens = list(PROMPT)
    while len(tokens) < len(PROMPT) + LENGTH and EOS not in tokens[len(PROMPT) :]:
        scores = processors(torch.tensor([tokens]), torch.tensor([TARGET(tokens)]))  # pyright: ignore
        tokens.append(int(scores[0].argmax()))
    return tokens[len(PROMPT) :]


def generate(made: Decoder, processors: LogitsProcessorList, **options) -> list[int]:
    return made.generate(PROMPT, max_new_tokens=LENGTH, logits_processor=processors, **options).tokens


@pytest.mark.few(17)
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_greedy_writes_what_a_sequential_loop_writes(policy, name):
    assert generate(decoder(policy), SETS[name]) == sequential(SETS[name])


def test_the_processors_change_the_text():
    plain = sequential(LogitsProcessorList())
    assert {name for name in SETS if sequential(SETS[name]) == plain} <= {"no repeated 3-gram"}


@pytest.mark.parametrize("verifier", [RRSw, Traversal])
def test_every_sampled_token_obeys_the_processors(verifier):
    for seed in range(10):
        tokens = [
            *PROMPT,
            *generate(decoder(POLICIES["binary"], verifier), SETS["several"], temperature=1.0, seed=seed),
        ]
        pairs = list(zip(tokens[len(PROMPT) - 1 :], tokens[len(PROMPT) :], strict=False))
        assert 4 not in tokens[len(PROMPT) :]
        assert (1, 5) not in pairs
        assert all(after % 2 == 0 for before, after in pairs if before % 2 == 1)


def test_speculation_still_accepts_under_processors():
    made = decoder(POLICIES["eagle"])
    out = made.generate(PROMPT, max_new_tokens=LENGTH, logits_processor=SETS["repetition penalty"], ignore_eos=True)
    assert len(out.metrics.rounds) < LENGTH


class Recorder(LogitsProcessor):
    """Changes nothing and records the texts it is called on."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, input_ids, scores):
        self.asked += input_ids.tolist()
        return scores


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_processors_are_not_called_on_texts_that_have_ended(policy):
    listener = Recorder()
    for seed in range(6):
        generate(decoder(policy), LogitsProcessorList([listener]), temperature=1.0, seed=seed)
    assert any(len(text) > len(PROMPT) + 1 for text in listener.asked)
    assert not [text for text in listener.asked if EOS in text[len(PROMPT) :]]


class Successor(LogitsProcessor):
    """Every token must be the one before, plus one."""

    def __call__(self, input_ids, scores):
        following = (input_ids[:, -1:] + 1) % VOCAB
        return torch.full_like(scores, -torch.inf).scatter(1, following, 0.0)


@pytest.mark.parametrize("verifier", [None, RRSw, Traversal])
def test_drafted_tokens_obey_the_processors_and_are_accepted(verifier):
    made = decoder(Template(tree="binary-3"), verifier)
    out = made.generate([1], max_new_tokens=12, temperature=1.0, logits_processor=[Successor()], ignore_eos=True)
    assert out.tokens == [(2 + place) % VOCAB for place in range(12)]
    assert [round_.committed for round_ in out.metrics.rounds] == [4, 4, 4]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
def test_a_drafter_that_proposes_nothing_may_be_normalised(options):
    options |= {"logits_processor": LogitsProcessorList([LogitNormalization()]), "max_new_tokens": LENGTH}
    found = decoder().with_drafter(PromptLookupDrafter(VOCAB, torch.device("cpu"))).generate(PROMPT, **options)
    assert found.tokens == decoder().plain().generate(PROMPT, **options).tokens


def test_a_drafter_of_a_smaller_vocabulary_obeys_processors_of_the_larger():
    small = Table(VOCAB - 2, seed=3)
    made = Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(lambda text: small([t % 6 for t in text]), VOCAB - 2), Chain())
    options = {"sequence_bias": [[[VOCAB - 1], 2.0]], "min_new_tokens": 4, "max_new_tokens": LENGTH}
    for temperature in (0.0, 1.0):
        tokens = made.generate(PROMPT, temperature=temperature, seed=1, **options).tokens
        assert tokens == made.plain().generate(PROMPT, temperature=temperature, seed=1, **options).tokens


class WrongShape(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores[:, :-1]


class ForbidsAll(LogitsProcessor):
    """Forbids every token from some text length on."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids, scores):
        return torch.full_like(scores, -torch.inf) if input_ids.shape[1] >= self.length else scores


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("policy", [Chain(depth=4), Template(tree="binary-2")])
def test_a_processor_that_returns_another_shape_is_named_with_the_position(policy, options):
    processors = LogitsProcessorList([Alternates(), WrongShape()])
    with pytest.raises(ConfigError, match=r"WrongShape returned logits of shape .* at position 3; .*keep the shape"):
        generate(decoder(policy), processors, **options)


@pytest.mark.parametrize("policy", [None, Chain(depth=4), Template(tree="binary-2")])
def test_a_processor_that_forbids_all_tokens_is_named_with_the_position(policy):
    with pytest.raises(ConfigError, match="ForbidsAll leaves no token possible at position 3"):
        generate(decoder(policy), LogitsProcessorList([Alternates(), ForbidsAll(3)]))


def test_a_deeper_dead_end_is_named_if_the_text_can_reach_it():
    with pytest.raises(ConfigError, match="ForbidsAll leaves no token possible at position 9"):
        decoder(Chain(depth=4)).generate(
            PROMPT, max_new_tokens=LENGTH, logits_processor=LogitsProcessorList([ForbidsAll(9)]), ignore_eos=True
        )


class DeadEndAfter(LogitsProcessor):
    """Forbids a token, and every token after it."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, self.token] = -torch.inf
        scores[(input_ids[:, -1] == self.token) & (input_ids.shape[1] > len(PROMPT))] = -torch.inf
        return scores


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 4}])
@pytest.mark.parametrize("verifier", [None, Traversal, RRSw])
def test_a_dead_end_that_no_text_can_reach_is_allowed(verifier, options):
    """The drafter always proposes the forbidden token."""
    if verifier and not options:
        pytest.skip("draws at random")
    law = Script([6], VOCAB)
    made = Decoder(ToyModel(TARGET, VOCAB), ToyDrafter(law, VOCAB), Template(tree="binary-2"), verifier)
    assert 6 not in generate(made, LogitsProcessorList([DeadEndAfter(6)]), **options)


class ReturnsValue(LogitsProcessor):
    """Returns the result of a given function of its scores from some text length on."""

    def __init__(self, make, length: int = 0) -> None:
        self.make, self.length = make, length

    def __call__(self, input_ids, scores):
        return self.make(scores) if input_ids.shape[1] >= self.length else scores


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_processor_may_return_another_dtype(dtype):
    tokens = generate(decoder(POLICIES["binary"]), LogitsProcessorList([ReturnsValue(lambda scores: scores.to(dtype))]))
    assert tokens == sequential(LogitsProcessorList())


@pytest.mark.parametrize("value", [None, [1.0]])
def test_a_processor_that_returns_no_scores_is_named_with_the_position(value):
    with pytest.raises(
        ConfigError, match=f"ReturnsValue returned {type(value).__name__} at position 5; .*return the scores"
    ):
        generate(decoder(Chain(depth=4)), LogitsProcessorList([ReturnsValue(lambda _: value, 5)]))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("policy", [None, Chain(depth=4), Template(tree="binary-2")])
def test_a_processor_that_returns_nan_or_inf_is_named_with_the_position(policy, value):
    broken = ReturnsValue(lambda scores: torch.full_like(scores, value), 5)
    with pytest.raises(ConfigError, match=r"ReturnsValue returned NaN or \+inf at position 5"):
        generate(decoder(policy), LogitsProcessorList([Alternates(), broken]))


def breaks_after(length: int):
    """The target's law up to some text length; longer texts get NaN logits."""
    return lambda text: [math.nan] * VOCAB if len(text) >= length else TARGET(text)


@pytest.mark.parametrize("options", [{}, {"logits_processor": [Alternates()]}])
@pytest.mark.parametrize(("verifier", "temperature"), [(None, 0.0), (None, 1.0), (RRSw, 1.0), (Traversal, 1.0)])
def test_nan_logits_of_the_target_are_blamed_on_the_target(verifier, temperature, options):
    made = Decoder(ToyModel(breaks_after(6), VOCAB), ToyDrafter(DRAFT, VOCAB), POLICIES["binary"], verifier)
    with pytest.raises(ModelError, match="the target's logits are not finite"):
        made.generate(PROMPT, temperature=temperature, seed=1, max_new_tokens=LENGTH, **options)


def test_invalid_values_may_still_be_removed():
    made = Decoder(ToyModel(breaks_after(6), VOCAB), ToyDrafter(DRAFT, VOCAB), POLICIES["binary"])
    assert len(made.generate(PROMPT, max_new_tokens=LENGTH, remove_invalid_values=True).tokens) == LENGTH


def test_the_batch_id_of_a_single_text_is_0():
    asked = set()

    def allowed(batch, ids):
        asked.add(batch)
        return [(int(ids[-1]) + 1) % VOCAB]

    processor = PrefixConstrainedLogitsProcessor(allowed, 1)
    tokens = generate(decoder(POLICIES["binary"]), LogitsProcessorList([processor]), ignore_eos=True)
    assert asked == {0}
    assert tokens == [(4 + place) % VOCAB for place in range(LENGTH)]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ([], "an empty list; it must allow a token"),
        (None, "NoneType; it must return a list of token ids"),
        ([1.5], r"\[1.5\]; it must return a list of token ids"),
        (3, "3; it must return a list of token ids"),
        ([1, VOCAB], f"token id {VOCAB}, outside the vocabulary of {VOCAB}"),
        (torch.tensor([1, -1]), f"token id -1, outside the vocabulary of {VOCAB}"),
    ],
)
def test_a_prefix_function_that_returns_no_tokens_is_named_with_the_position(found, words):
    processor = PrefixConstrainedLogitsProcessor(lambda _, ids: found if len(ids) == 6 else [1, 2], 1)
    with pytest.raises(ConfigError, match=rf"prefix_allowed_tokens_fn returned {words} \(at position 6\)"):
        generate(decoder(Chain(depth=4)), LogitsProcessorList([processor]))


@pytest.mark.parametrize("options", [{"logits_processor": [Alternates()]}, {"temperature": 1.0, "seed": 1}])
def test_a_target_whose_logits_are_all_minus_inf_is_blamed_itself(options):
    verifier = RRSw if "seed" in options else None
    made = Decoder(ToyModel(lambda _: [-math.inf] * VOCAB, VOCAB), ToyDrafter(DRAFT, VOCAB), Chain(depth=4), verifier)
    with pytest.raises(ModelError, match="the target's logits are not finite"):
        made.generate(PROMPT, **options)
