"""The loop over a toy model: the text of plain decoding, at the cost it claims, ending where it should."""

import math
import re

import pytest
import torch
from transformers import BatchEncoding, MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from drafttree import Decoder, Metrics
from drafttree.drafters import LanguageModelDrafter, Session
from drafttree.errors import ConfigError, ContextError, InputError
from drafttree.policies import POLICIES, Chain, Talon
from drafttree.verifiers import Coupled, Greedy
from helpers.splitmix import plain_uniform
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, LENGTH, PROMPT, SMALL, TARGET, VOCAB, small
from testing.toy import PieceTokenizer, Script, ToyDrafter, ToyModel, greedy_text

LETTERS = PieceTokenizer([bytes([code]) for code in b"abcdefgh"])

SAMPLINGS = {
    "greedy": {},
    "coupled": {"temperature": 1.0},
    "nucleus": {"temperature": 0.7, "top_p": 0.9},
    "everything": {"temperature": 1.3, "top_k": 6, "top_p": 0.95, "min_p": 0.02},
}
every_policy = pytest.mark.parametrize("name", SMALL)
every_sampling = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)


def toys(policy=None, *, law=TARGET, draft=DRAFT, context=None, draft_context=None, **options) -> Decoder:
    vocab = options.pop("vocab", VOCAB)
    target, drafter = ToyModel(law, vocab, context), ToyDrafter(draft, vocab, draft_context)
    return toy_decoder(target, drafter, policy or Talon(width=4, budget=16), **options)


def spelled(text: str, wrong: frozenset[int] = frozenset(), **options) -> Decoder:
    """A decoder whose target recites a text after a prompt of one token, and whose drafter misses some places."""
    tokens = LETTERS(text)["input_ids"]
    guess = [(token + 1) % VOCAB if place in wrong else token for place, token in enumerate(tokens)]
    laws = {"law": Script(tokens, VOCAB), "draft": Script(guess, VOCAB)}
    return toys(Chain(depth=6), **laws, tokenizer=LETTERS, **options)


def sampled_text(prompt, count, *, seed, temperature, top_k=0, top_p=1.0, min_p=0.0) -> list[int]:
    """A coupled text by transformers' warpers, SplitMix64 on Python integers, and one token at a time."""
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    tokens = list(prompt)
    for position in range(len(prompt), len(prompt) + count):
        logits = torch.tensor([TARGET(tokens)])
        for warper in warpers:
            logits = warper(None, logits)
        randomness = [-math.log(-math.log(u)) for u in plain_uniform(seed, position, VOCAB)]
        tokens.append(max(range(VOCAB), key=lambda token: float(logits[0, token]) + randomness[token]))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("name", sorted(SAMPLINGS.keys() - {"greedy"}))
def test_coupled_text_is_that_of_a_loop_with_noise_of_its_own(name):
    decoder = toys()
    for seed in (0, 7, -3):
        out = decoder.generate(PROMPT, max_new_tokens=12, seed=seed, **SAMPLINGS[name])
        assert out.tokens == sampled_text(PROMPT, 12, seed=seed, **SAMPLINGS[name])


@every_policy
@every_sampling
def test_a_round_costs_one_target_pass_and_a_draft_pass_per_level(name, sampling):
    decoder = toys(small(name))
    metrics = decoder.generate(PROMPT, max_new_tokens=LENGTH, **sampling).metrics
    target, (draft,) = decoder.target, decoder.drafter.drafts
    assert metrics.prefill_passes == 1
    assert target.passes == len(metrics.rounds) + metrics.prefill_passes
    assert all(round_.draft_passes == round_.levels for round_ in metrics.rounds)
    assert draft.passes == sum(round_.levels for round_ in metrics.rounds)
    assert target.forwarded == len(PROMPT) - 1 + sum(round_.nodes for round_ in metrics.rounds)


@every_policy
@every_sampling
def test_no_share_exceeds_one_and_every_token_is_counted_once(name, sampling):
    out = toys(small(name)).generate(PROMPT, max_new_tokens=LENGTH, **sampling)
    metrics = out.metrics
    assert 0 < metrics.acceptance_rate <= 1
    assert len(metrics.rounds) < LENGTH
    assert all(0 <= share <= 1 for share in metrics.acceptance_by_depth)
    assert metrics.tokens == len(out.tokens) == len(out.drafted) == LENGTH
    assert sum(round_.accepted for round_ in metrics.rounds) == sum(out.drafted)
    assert all(round_.accepted <= min(round_.levels, round_.committed) for round_ in metrics.rounds)
    assert max(round_.nodes for round_ in metrics.rounds) <= small(name).budget


@every_policy
def test_a_drafter_with_a_cache_proposes_what_one_that_reads_everything_again_does(name):
    cached = toy_decoder(ToyModel(TARGET), LanguageModelDrafter(ToyModel(DRAFT)), small(name))
    for sampling in ({}, {"temperature": 1.0, "seed": 0}):
        one = cached.generate(PROMPT, max_new_tokens=LENGTH, **sampling)
        other = toys(small(name)).generate(PROMPT, max_new_tokens=LENGTH, **sampling)
        assert one.tokens == other.tokens
        assert one.drafted == other.drafted
        assert shapes(one.metrics) == shapes(other.metrics)


def shapes(metrics: Metrics) -> list[tuple[int, ...]]:
    return [(r.committed, r.accepted, r.nodes, r.levels, r.draft_passes) for r in metrics.rounds]


def test_a_perfect_drafter_is_accepted_to_the_last_token():
    metrics = toys(Chain(depth=4), draft=TARGET).generate(PROMPT, max_new_tokens=20).metrics
    assert [round_.committed for round_ in metrics.rounds] == [5, 5, 5, 5]
    assert metrics.acceptance_rate == 1
    assert metrics.acceptance_by_depth == [1, 1, 1, 1]


@pytest.mark.parametrize(("length", "chunks"), [(1, 0), (2, 1), (513, 1), (514, 2), (1100, 3)])
def test_a_prompt_of_any_length_is_read_in_chunks(length, chunks):
    prompt = [place * 5 % VOCAB for place in range(length)]
    decoder = toys()
    out = decoder.generate(prompt, max_new_tokens=6)
    assert out.tokens == greedy_text(TARGET, prompt, 6)
    assert out.metrics.prefill_passes == chunks
    assert decoder.target.passes == chunks + len(out.metrics.rounds)


def test_one_new_token_needs_no_draft():
    decoder = toys()
    metrics = decoder.generate(PROMPT, max_new_tokens=1).metrics
    assert decoder.drafter.drafts[0].passes == 0
    assert [(round_.nodes, round_.committed) for round_ in metrics.rounds] == [(1, 1)]


def test_eos_tokens_can_be_ignored():
    out = spelled("aabaaaaa", eos=(1,)).generate([0], max_new_tokens=6, ignore_eos=True)
    assert (out.text, out.finish_reason) == ("aabaaa", "length")


def test_an_eos_token_in_the_prompt_ends_nothing():
    assert len(spelled("aaaaaa", eos=(1,)).generate([1], max_new_tokens=4).tokens) == 4


def test_a_streamed_texts_metrics_are_those_of_a_generated_one():
    decoder = toys(Chain(depth=2))
    text = decoder.new_request(PROMPT, max_new_tokens=6)
    list(decoder.stream_request(text))
    text.drafting.session.nbytes = 7
    assert text.metrics.draft_cache_bytes == 0
    text.end("length")
    assert text.metrics.draft_cache_bytes == 7


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        ([[]], {}, InputError, "prompt is empty"),
        ("", {}, InputError, "prompt is empty"),
        ([0, 8], {}, InputError, "token id 8 is outside the vocabulary of 8"),
        ([0, -1], {}, InputError, "token id -1 is outside the vocabulary of 8"),
        ([[0], [1, 99]], {}, InputError, "token id 99"),
        ([0] * 60, {"max_new_tokens": 5}, ContextError, "context of 64"),
        ([0] * 70, {"max_new_tokens": 5}, ContextError, "prompt of 70 tokens leaves no room for a text"),
        ([[0], [0] * 64], {"max_new_tokens": 1}, ContextError, "the prompt of 64 tokens"),
        ([[0], b"abc"], {}, InputError, "not bytes; decode it"),
        (b"abc", {}, InputError, "not bytes; decode it"),
        ({1, 2}, {}, InputError, "not set"),
        ([0], {"max_new_tokens": 0}, ConfigError, "max_new_tokens is 0"),
        ([0], {"stop": ""}, ConfigError, "none of them empty"),
        ([0], {"grammar": {"type": "object"}}, ConfigError, "make one with drafttree.grammar"),
        ("\ud800", {}, InputError, "half a surrogate pair"),
        ([0], {"temperature": -1}, ConfigError, "temperature is -1"),
    ],
)
def test_what_cannot_be_done_is_said_before_any_model_runs(prompt, options, error, words):
    decoder = toys(context=64, tokenizer=LETTERS)
    several = isinstance(prompt, list) and isinstance(prompt[0], list)
    for entry in [decoder.generate] if several else [decoder.generate, decoder.stream]:
        with pytest.raises(error, match=words) as raised:
            entry(prompt, **{"max_new_tokens": 8} | options)
        assert "\n" not in str(raised.value)
    assert decoder.target.passes == 0


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        (["a", "", "b"], InputError, "prompt 2 of 3: the prompt is empty; give at least one token"),
        ([[0], [0] * 64], ContextError, "prompt 2 of 2: the prompt of 64 tokens leaves no room for a text"),
        (([8], [9]), InputError, "prompt 1 of 2: token id 8 is outside the vocabulary of 8"),
    ],
)
def test_a_prompt_of_a_list_is_named_by_its_place(prompts, error, message):
    with pytest.raises(InputError) as raised:
        toys(context=64, tokenizer=LETTERS).generate(prompts, max_new_tokens=8)
    assert type(raised.value) is error
    assert str(raised.value).startswith(message)


def test_an_option_is_no_mistake_of_the_first_prompt():
    with pytest.raises(ConfigError, match=r"^temperature is -1"):
        toys().generate([[0], [1]], temperature=-1)


def test_a_list_of_no_prompts_has_no_texts():
    assert toys().generate([], max_new_tokens=8) == []
    with pytest.raises(InputError, match=r"^the prompt is empty"):
        toys().generate(torch.tensor([], dtype=torch.int64), max_new_tokens=8)


def test_no_stop_strings_may_be_none():
    assert len(toys().generate([0], max_new_tokens=3, stop=None).tokens) == 3


def test_the_single_row_a_tokenizer_returns_as_tensors_is_a_prompt():
    row = torch.tensor([PROMPT])
    ids = BatchEncoding({"input_ids": row, "attention_mask": torch.ones_like(row)})
    expected = toys().generate(PROMPT, max_new_tokens=5).tokens
    assert toys().generate(ids, max_new_tokens=5).tokens == expected
    assert [token for chunk in toys().stream(ids, max_new_tokens=5) for token in chunk.tokens] == expected
    assert toys().generate([ids, ids], max_new_tokens=5)[1].tokens == expected
    with pytest.raises(InputError, match="these token ids are 2 prompts in one; give a list of them"):
        toys().generate({"input_ids": row.expand(2, -1)})
    with pytest.raises(InputError, match="the tokenizer's output contains padding; tokenize without padding"):
        toys().generate({"input_ids": row, "attention_mask": torch.zeros_like(row)})


def test_stream_takes_one_prompt():
    with pytest.raises(InputError, match="stream takes one prompt"):
        toys(tokenizer=LETTERS).stream(["a", "b"])


@pytest.mark.parametrize("verifier", ["traversal", 5, Talon])
def test_a_verifier_is_a_class_of_verifiers(verifier):
    with pytest.raises(ConfigError, match="give a class"):
        toys(verifier=verifier)


def test_text_and_stop_strings_need_a_tokenizer():
    with pytest.raises(InputError, match="tokenizer"):
        toys().generate("abc")
    with pytest.raises(ConfigError, match="tokenizer"):
        toys().generate([0], stop="a")


def test_a_wrong_verifier_is_an_error_before_any_model_runs():
    decoder = toys(verifier=Greedy)
    with pytest.raises(ConfigError, match="use 'coupled'"):
        decoder.generate(PROMPT, temperature=0.5)
    with pytest.raises(ConfigError, match="use 'greedy'"):
        toys(verifier=Coupled).generate(PROMPT)
    assert decoder.target.passes == 0


@every_policy
def test_the_whole_context_can_be_used(name):
    out = toys(small(name), context=32).generate(PROMPT, max_new_tokens=27)
    assert out.tokens == greedy_text(TARGET, PROMPT, 27)


@every_policy
@pytest.mark.parametrize("context", [1, 4, 20])
def test_a_drafter_with_a_smaller_context_stops_drafting(name, context):
    drafter = LanguageModelDrafter(Bounded(DRAFT, context=context))
    out = toy_decoder(ToyModel(TARGET), drafter, small(name)).generate(PROMPT, max_new_tokens=LENGTH)
    assert out.tokens == greedy_text(TARGET, PROMPT, LENGTH)
    assert any(out.drafted) == (context == 20)
    assert not any(out.drafted[context:])


class Bounded(ToyModel):
    """A model that has no position beyond its context."""

    def score(self, segment):
        assert int(segment.positions.max()) < self.context
        return super().score(segment)


def test_ctrl_c_in_the_drafter_is_raised():
    drafting = ToyModel(DRAFT)
    drafting.interrupt_at = 6
    decoder = Decoder(ToyModel(TARGET), LanguageModelDrafter(drafting), Chain(depth=3))
    with pytest.raises(KeyboardInterrupt):
        decoder.generate([PROMPT, PROMPT], max_new_tokens=20)
    assert drafting.passes == 6


def test_ctrl_c_ends_a_stream_with_a_last_chunk_and_is_raised():
    decoder, chunks = spelled("abcdefghab"), []
    decoder.target.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        chunks.extend(decoder.stream([0], max_new_tokens=10, stop="hab"))
    assert [chunk.finish_reason for chunk in chunks] == [None, "interrupted"]
    assert "".join(chunk.text for chunk in chunks) == "abcdefg"


def test_a_policy_adapts_to_one_text_and_forgets_it():
    policy = POLICIES["dynatree"](stop_below=0.01, prune_below=0.01)
    decoder = toys(policy)
    first, second = (decoder.generate(PROMPT, max_new_tokens=LENGTH, temperature=1.0, seed=0) for _ in range(2))
    assert shapes(first.metrics) == shapes(second.metrics)
    static = decoder.with_policy(policy.model_copy(update={"history": False}))
    frozen = static.generate(PROMPT, max_new_tokens=LENGTH, temperature=1.0, seed=0)
    assert shapes(first.metrics) != shapes(frozen.metrics)
    assert first.tokens == frozen.tokens


def test_without_a_seed_texts_differ_follow_torchs_and_tell_their_seed():
    decoder = toys()
    state = torch.get_rng_state()
    first, second = (decoder.generate(PROMPT, temperature=1.0) for _ in range(2))
    assert first.tokens != second.tokens
    torch.set_rng_state(state)
    assert decoder.generate(PROMPT, temperature=1.0).tokens == first.tokens
    assert decoder.generate(PROMPT, temperature=1.0, seed=second.seed).tokens == second.tokens


@pytest.mark.parametrize("options", [{}, {"seed": 5}, {"temperature": 0.0}])
def test_a_greedy_text_has_no_seed(options):
    decoder = toys()
    assert decoder.generate(PROMPT, **options).seed is None
    assert [each.seed for each in decoder.generate([PROMPT], **options)] == [None]


def test_a_greedy_text_or_a_seeded_one_leaves_torchs_generator_alone():
    state = torch.get_rng_state()
    toys().generate(PROMPT)
    toys().generate(PROMPT, temperature=1.0, seed=3)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_sequence_can_be_advanced_by_hand():
    decoder = toys(Chain(depth=3), draft=TARGET)
    sequence = decoder.new_request(PROMPT, max_new_tokens=10)
    assert decoder.target.passes == 0
    counts = []
    while not sequence.finish_reason:
        counts.append(decoder.step(sequence))
    assert counts == [4, 4, 2]
    assert sequence.tokens == PROMPT + greedy_text(TARGET, PROMPT, 10)
    assert sequence.text.remaining == 0
    passes = decoder.target.passes
    assert decoder.step(sequence) == 0
    assert (len(sequence.tokens), decoder.target.passes) == (len(PROMPT) + 10, passes)


def test_the_toy_text_is_not_a_loop():
    text = [*PROMPT[-3:], *greedy_text(TARGET, PROMPT, LENGTH)]
    assert len({tuple(text[place : place + 3]) for place in range(LENGTH)}) == LENGTH


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "coupled"])
def test_a_draft_temperature_changes_the_trees_and_never_the_text(options):
    plain = toys().plain().generate([1, 2], max_new_tokens=30, **options)
    runs = [
        toys(Talon(margin=0.2)).generate([1, 2], max_new_tokens=30, draft_temperature=t, **options) for t in (1, 0.2)
    ]
    assert all(run.tokens == plain.tokens for run in runs)
    assert shapes(runs[0].metrics) != shapes(runs[1].metrics)


class Watched(Chain):
    """A policy whose state is what it was told of every round."""

    def init_state(self, context):
        return ()

    def observe(self, state, outcome):
        return (*state, (outcome.accepted, outcome.levels))


@pytest.mark.parametrize("wrong", [frozenset(), frozenset({3, 9, 10}), frozenset(range(30))])
def test_a_policy_is_told_how_many_drafted_tokens_were_accepted(wrong):
    """The drafter's mistakes are known, so the accepted tokens of every round are."""
    text = "abcdefghabcdefgh"
    decoder = spelled(text, wrong).with_policy(Watched(depth=4))
    request = decoder.new_request([0], max_new_tokens=12)
    expected, place = [], 0
    while not request.text.finish_reason:
        levels = min(4, 12 - place - 1)
        right = next((step for step in range(levels) if place + step in wrong), levels)
        decoder.step(request)
        expected.append((right, levels))
        place += right + 1
    assert list(request.drafting.state) == expected
    assert decoder.policy == Watched(depth=4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"policy": "talon"}, "policy is 'talon'"),
        ({"policy": Talon}, "policy is"),
        ({"drafter": "lookup"}, "drafter is"),
    ],
)
def test_a_decoder_takes_objects_and_names_what_is_none(given, words):
    with pytest.raises(ConfigError, match=words):
        Decoder(ToyModel(TARGET), **given)


@pytest.mark.parametrize(
    ("session", "words"),
    [
        (object, "Careless.start returns object; derive it from drafttree.drafters.Session"),
        (lambda: Session(None, torch.device("cpu")), "Session has no method draft_root, nor has its drafter"),
    ],
)
def test_a_session_that_cannot_draft_is_named(session, words):
    class Careless(ToyDrafter):
        def start(self, prompt, capacity):
            return session()

    decoder = Decoder(ToyModel(TARGET), Careless(DRAFT))
    with pytest.raises(ConfigError, match=re.escape(words)):
        decoder.generate(PROMPT)
