"""A prompt that begins as an earlier text did: what is read of it, and that its text is that of a fresh decoder."""

from contextlib import suppress
from copy import deepcopy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import drafttree
from drafttree import Decoder
from drafttree.core.machine_memory import MachineMemory
from drafttree.drafters import LanguageModelDrafter, MixedDrafter, Session, SuffixDrafter
from drafttree.engine.prefixes import PrefixCache
from drafttree.errors import ConfigError
from drafttree.models import TargetModel
from drafttree.models.backend_choice import choose_backend
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.policies import Chain, Talon
from helpers.replays import Replays
from testing import families, tiny

HEADS = ("embedded-eagle3", "embedded-hydra", "embedded-medusa")
REUSING = {"max_new_tokens": 16, "reuse_prefix": True}
PROMPT = tiny.random_tokens(20, 3)
TOY = TargetModel(tiny.build("llama"))


class Reads:
    """Counts the tokens of every pass of a model."""

    def __init__(self, model) -> None:
        self.forward, self.passes = model.forward, []
        model.forward = self.count

    def count(self, segments, **options):
        self.passes.append(sum(segment.nodes for segment in segments))
        return self.forward(segments, **options)

    def take(self) -> list[int]:
        taken, self.passes = self.passes, []
        return taken


def say(role: str, content: str) -> dict:
    return {"role": role, "content": content}


def shape(generation) -> list[tuple[int, ...]]:
    """What every round drafted and accepted, which depends on all the drafter knows."""
    return [(r.committed, r.accepted, r.nodes, r.draft_passes) for r in generation.metrics.rounds]


def one_of_each_cache(names: list[str]) -> list:
    """The names, of which a family of each kind of cache is no slow test."""
    fast = {"gpt_oss", "deepseek_v3", "lfm2", "qwen3_5", "bamba"}
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


def random_model(name: str = "llama", seed: int = 0) -> TargetModel:
    return TargetModel(tiny.build(name, seed))


def blurred(model: TargetModel, seed: int = 1) -> LanguageModelDrafter:
    """A drafter near enough to a model for some of its tokens to be accepted."""
    module = deepcopy(model.module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
    return LanguageModelDrafter(TargetModel(module))


@pytest.mark.few(1)
@pytest.mark.parametrize("drafter", ["none", "embedded-draft", *HEADS, "mixed:embedded-eagle3", "suffix"])
def test_a_second_turn_reads_only_what_is_new(drafter):
    decoder = drafttree.load("embedded", drafter, "eagle:depth=4,budget=12", dtype="float32")
    reads, options = Reads(decoder.target), {"max_new_tokens": 24, "temperature": 0}
    talk = [say("user", "What did the old man see when he looked out of the window that morning?")]
    first = decoder.new_request(talk, **options)
    while not first.finish_reason:
        decoder.step(first)
    decoder.prefixes.store(first)
    talk += [say("assistant", first.text.detokenizer.text), say("user", "And what did he do then?")]
    reads.take()
    second = decoder.generate(talk, **options)
    read, fresh = reads.take(), decoder.generate(talk, **options, reuse_prefix=False)
    assert (second.tokens, shape(second)) == (fresh.tokens, shape(fresh))
    prompt = decoder.new_request(talk).tokens
    shared = next(n for n, (new, old) in enumerate(zip(prompt, first.tokens, strict=False)) if new != old)
    assert shared > len(first.tokens) - 4
    # A head goes on from the tokens it has read itself, those of the last round not among them.
    unread = first.metrics.rounds[-1].committed + 1 if decoder.drafter and decoder.drafter.hidden_layers else 0
    assert shared - unread <= second.metrics.reused_tokens <= shared - bool(unread)
    assert read[0] == len(prompt) - 1 - second.metrics.reused_tokens
    assert read[1:] == [rows.nodes for rows in second.metrics.rounds]


@pytest.mark.few(2)
@pytest.mark.parametrize("end", [20, 31, 12], ids=["whole prompt", "into the answer", "inside the prompt"])
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_the_text_is_transformers_wherever_the_texts_part(name, end):
    target, reference = tiny.wrap(tiny.build(name))
    drafter = blurred(target)
    decoder = Decoder(target, drafter, Talon(budget=12))
    own, drafted = Reads(target), Reads(drafter.model)
    text = [*PROMPT, *decoder.generate(PROMPT, **REUSING).tokens]
    prompt = [*text[:end], (text[end] + 1) % tiny.VOCAB, *tiny.random_tokens(6, 4)]
    own.take(), drafted.take()
    generation = decoder.generate(prompt, **REUSING)
    expected = reference.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :]
    assert generation.tokens == expected.tolist()
    assert generation.metrics.reused_tokens == end
    assert own.take()[0] == drafted.take()[0] == len(prompt) - 1 - end


def test_the_same_prompt_again_reads_nothing_but_its_last_token():
    decoder = Decoder(random_model())
    reads = Reads(decoder.target)
    once, again = decoder.generate(PROMPT, **REUSING), decoder.generate(PROMPT, **REUSING)
    assert reads.take() == [len(PROMPT) - 1] + [1] * 32
    assert once.tokens == again.tokens
    assert again.metrics.prefill_passes == 0


def test_draws_that_rounding_could_change_begin_with_a_fresh_prompt():
    decoder = drafttree.load("embedded", "embedded-eagle3", "chain:depth=2", verifier="traversal", dtype="float32")
    talk = [say("user", "What did the old man see when he looked out of the window that morning?")]
    for seed in (14, 43, 118):  # each gave two texts where kept rows were used
        options = {"max_new_tokens": 24, "temperature": 1, "seed": seed}
        once, again = (decoder.generate(talk, **options) for _ in range(2))
        assert again.metrics.reused_tokens == 0
        assert once.tokens == again.tokens
    assert decoder.prefixes.tokens == 0
    with pytest.raises(ConfigError, match=r"reuse_prefix=True with Traversal: .*or use 'coupled'"):
        decoder.generate(talk, **options, reuse_prefix=True)
    batches = [decoder.generate([talk], **options, reuse_prefix=True) for _ in range(2)]
    assert [each.metrics.reused_tokens for (each,) in batches] == [0, 20]
    assert decoder.with_verifier(None).generate(talk, **options).metrics.reused_tokens


def test_a_drafter_put_in_between_reads_for_itself():
    target = random_model()
    decoder = Decoder(target, blurred(target), Chain(depth=3))
    text = [*PROMPT, *decoder.generate(PROMPT, **REUSING).tokens, 5]
    for other in (blurred(target, 2), MixedDrafter(SuffixDrafter(tiny.VOCAB), blurred(target, 3)), None):
        swapped = decoder.with_drafter(other)
        kept, fresh = swapped.generate(text, **REUSING), swapped.generate(text, max_new_tokens=16)
        assert (kept.tokens, shape(kept)) == (fresh.tokens, shape(fresh))
        assert kept.metrics.reused_tokens > len(PROMPT)


class HiddenReader:
    """A drafter of a user's own that reads hidden states and cannot go on from another session."""

    context, levels, hidden_layers, nbytes, vocab_size = None, None, (tiny.LAYERS,), 0, tiny.VOCAB

    def start(self, prompt, capacity):
        session = HiddenReaderSession(self, torch.device("cpu"))
        session.prompt = prompt
        return session


class HiddenReaderSession(Session):
    prompt: list[int]

    def prefill(self, hidden_states, tokens):
        assert hidden_states[0].shape[1] == len(self.prompt) - 1

    def draft_root(self):
        return torch.zeros(1, 1, tiny.VOCAB)

    def draft_level(self, tokens, origins):
        return torch.zeros(1, tokens.shape[1], tiny.VOCAB)


def test_a_drafter_that_cannot_go_on_is_shown_every_hidden_state():
    decoder = Decoder(random_model(), HiddenReader(), Chain(depth=2))
    for _ in range(2):
        assert decoder.generate(PROMPT, **REUSING).metrics.reused_tokens == 0


def edit(module) -> None:
    with torch.no_grad():
        module.get_output_embeddings().weight.neg_()


def hook(module) -> None:
    module.model.layers[0].register_forward_hook(lambda layer, given, out: 1.5 * out)


@pytest.mark.parametrize("change", [edit, hook])
@pytest.mark.parametrize("select", [None, choose_backend])
def test_what_was_kept_goes_with_the_weights(change, select):
    module = tiny.build("llama")
    decoder = Decoder(TargetModel(module, *filter(None, [select])))
    decoder.generate([1, 2, 3], **REUSING)
    text = [*PROMPT, *decoder.generate(PROMPT, **REUSING).tokens]
    change(module)
    generation = decoder.generate(text, **REUSING)
    assert generation.metrics.reused_tokens == 0
    assert generation.tokens == decoder.generate(text, max_new_tokens=16).tokens
    assert decoder.prefixes.tokens == len(text) + 15


@pytest.mark.few(1)
@pytest.mark.parametrize("name", one_of_each_cache(families.known()))
def test_every_family_goes_on_from_its_rows_and_recurrent_layers_read_anew(name):
    target = TargetModel(tiny.from_config(families.config(name)))
    decoder = Decoder(target, blurred(target), Talon(budget=12))
    text = [*PROMPT, *decoder.generate(PROMPT, **REUSING).tokens]
    prompt = [*text[:28], (text[28] + 1) % tiny.VOCAB, 3]
    generation = decoder.generate(prompt, **REUSING)
    assert generation.tokens == decoder.generate(prompt, max_new_tokens=16).tokens
    assert generation.metrics.reused_tokens == (0 if name in families.hybrids() else 28)


def test_recorded_passes_serve_the_next_turn():
    recorder = Replays()
    module = tiny.build("llama")
    decoder = Decoder(TargetModel(module, lambda module: RecordedBackend(FusedBackend(module), recorder)))
    text = [*PROMPT, *decoder.generate(PROMPT, **REUSING).tokens]
    recorded = recorder.recorded
    kept = decoder.generate([*text, 4, 5], **REUSING)
    assert recorder.recorded <= recorded + 1  # the pass over the new tokens
    assert kept.metrics.reused_tokens == len(text) - 1
    assert kept.tokens == decoder.generate([*text, 4, 5], max_new_tokens=16).tokens


def test_the_oldest_texts_go_first_and_the_bound_holds():
    decoder = Decoder(random_model(), prefixes=PrefixCache(max_tokens=40))
    prompts = [[seed, *tiny.random_tokens(11, seed)] for seed in range(3)]
    short = {"max_new_tokens": 4, "reuse_prefix": True}
    for prompt in (*prompts[:2], prompts[0], prompts[2]):  # 15 tokens kept of each; the first is used again
        decoder.generate(prompt, **short)
        assert decoder.prefixes.tokens <= 40
    assert [decoder.generate(prompt, **short).metrics.reused_tokens for prompt in (prompts[0], prompts[1])] == [11, 0]
    long = decoder.generate(tiny.random_tokens(45, 9), **short)
    assert len(long.tokens) == 4
    assert decoder.prefixes.tokens == 40
    assert decoder.generate(tiny.random_tokens(45, 9), **short).metrics.reused_tokens == 40
    decoder.prefixes.clear()
    assert decoder.prefixes.tokens == 0


def test_many_texts_are_kept_and_none_where_none_may_be():
    decoder = Decoder(random_model())
    for token in range(20):
        decoder.generate([token, 1], max_new_tokens=1, reuse_prefix=True)
    assert (len(decoder.prefixes), decoder.prefixes.tokens) == (20, 40)
    nothing = Decoder(random_model(), prefixes=PrefixCache(0))
    assert [nothing.generate(PROMPT, **REUSING).metrics.reused_tokens for _ in range(2)] == [0, 0]


class Told:
    """The texts that a prefix cache has told of as kept, and not as forgotten."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []

    def kept(self, tokens: list[int]) -> None:
        self.texts.append(tokens)

    def forgotten(self, tokens: list[int]) -> None:
        self.texts.remove(tokens)


PROMPTS = st.lists(st.integers(0, 2), min_size=2, max_size=8)


@settings(max_examples=30)
@given(st.integers(0, 24), st.lists(PROMPTS | PROMPTS | st.integers(0, 24), min_size=1, max_size=12))
def test_what_is_kept_is_what_a_list_by_time_of_use_keeps(most, steps):
    """A step is a prompt, or another limit."""
    decoder, texts, told = Decoder(TOY, prefixes=PrefixCache(most)), list[list[int]](), Told()
    decoder.prefixes.observe(told)
    for step in steps:
        if isinstance(step, int):
            decoder.prefixes.limit(most := step)
        else:
            best = max(reversed(texts), key=lambda text: longest_shared(text, step), default=[])
            reused = min(longest_shared(best, step), len(step) - 1)
            generation = decoder.generate(step, max_new_tokens=2, reuse_prefix=True, ignore_eos=True)
            assert generation.metrics.reused_tokens == reused
            if reused:
                texts.append(texts.pop(next(place for place, text in enumerate(texts) if text is best)))
            if whole := [*step, *generation.tokens][:-1][:most]:
                texts = [*(text for text in texts if whole[: len(text)] != text), whole]
        while sum(map(len, texts)) > most:
            texts.pop(0)
        assert sorted(told.texts) == sorted(texts)
        assert decoder.prefixes.tokens == sum(map(len, texts)) <= most
        assert len(decoder.prefixes) == len(texts)
    late = Told()
    decoder.prefixes.observe(late)
    assert late.texts == texts
    decoder.prefixes.clear()
    assert (late.texts, decoder.prefixes.tokens) == ([], 0)


def longest_shared(one, other):
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (ours, theirs) in pairs if ours != theirs), min(len(one), len(other)))


def test_by_default_a_share_of_the_memory_is_filled(monkeypatch):
    row = 2 * tiny.LAYERS * 2 * 8 * 4  # keys and values, layers, key heads, width, bytes of a float32
    for total, most in ((20_000 * row * 256, 20_000), (1000 * row, 8192), (None, 8192)):
        known = None if total is None else MachineMemory(total, 0)
        monkeypatch.setattr("drafttree.engine.memory.machine_memory", lambda known=known: known)
        decoder = Decoder(random_model())
        assert decoder.prefixes.max_tokens is None
        decoder.generate(PROMPT, **REUSING)
        assert decoder.prefixes.max_tokens == most


def test_a_text_with_rows_alone_does_not_hide_one_whose_head_has_read_it():
    decoder = drafttree.load("embedded", "embedded-eagle3", "chain:depth=2", dtype="float32")
    options = {"max_new_tokens": 4, "temperature": 0, "reuse_prefix": True}
    prompt = decoder.new_request("The old man looked out of the window and saw").tokens
    decoder.generate(prompt, **options)
    longer = [*prompt, *decoder.generate(prompt, **options, speculate=False).tokens, 5, 6]
    decoder.generate(longer, **options, speculate=False)
    assert decoder.generate([*longer, 7], **options).metrics.reused_tokens >= len(prompt) - 2


@pytest.mark.slow
def test_keeping_what_a_session_knows_leaves_its_next_round_as_it_would_be():
    options = {"max_new_tokens": 16, "temperature": 0}
    for drafter in ("embedded-draft", *HEADS, "mixed:embedded-eagle3"):
        decoder = drafttree.load("embedded", drafter, "eagle:depth=4,budget=12", dtype="float32")
        shapes = []
        for keeps in (False, True):
            request = decoder.new_request("The old man looked out of the window", **options)
            while not request.text.finish_reason:
                decoder.step(request)
                if keeps:
                    request.drafting.session.snapshot(len(request.tokens))
            shapes.append([(r.committed, r.accepted, r.nodes, r.draft_passes) for r in request.metrics.rounds])
        assert shapes[0] == shapes[1]


def test_a_copy_of_what_is_kept_takes_no_more_than_its_rows():
    decoder = Decoder(random_model())
    request = decoder.new_request(PROMPT, **REUSING)
    decoder.step(request)
    copy = request.cache.copy_rows(10)
    assert copy.nbytes == request.cache.nbytes * 10 // request.cache.capacity


def test_only_those_that_want_it_are_kept():
    decoder = Decoder(random_model())
    decoder.generate(PROMPT, max_new_tokens=4)
    assert decoder.prefixes.tokens == 0
    with pytest.raises(ConfigError, match="reuse_prefix is 'no'"):
        decoder.generate(PROMPT, reuse_prefix="no")


def test_an_abandoned_stream_is_kept():
    decoder = Decoder(random_model())
    stream = decoder.stream(PROMPT, **REUSING)
    next(stream)
    stream.close()
    assert decoder.prefixes.tokens == len(PROMPT)
    assert decoder.generate([*PROMPT, 1], **REUSING).metrics.reused_tokens == len(PROMPT)


def test_a_text_cut_short_by_ctrl_c_is_kept():
    decoder = Decoder(random_model())
    request, forward = decoder.new_request(PROMPT, **REUSING), decoder.target.forward

    def interrupted(segments, **options):
        if segments[0].cache.length > len(PROMPT) + 2:
            raise KeyboardInterrupt
        return forward(segments, **options)

    decoder.target.forward = interrupted
    with suppress(KeyboardInterrupt):
        list(decoder.stream_request(request))
    assert decoder.prefixes.tokens == len(request.tokens) - 1 == len(PROMPT) + 3
