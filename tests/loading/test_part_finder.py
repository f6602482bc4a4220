"""`with_policy`, `with_drafter` and `with_verifier` take what `load` takes, and refuse what it refuses."""

import gc
from collections.abc import Callable

import pytest

import drafttree
from drafttree import Decoder
from drafttree.drafters import HeadDrafter, LanguageModelDrafter, MixedDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.errors import ConfigError, ModelError
from drafttree.loading import model_drafters
from drafttree.policies import Chain, Talon
from drafttree.verifiers import Traversal
from helpers.refusals import told
from testing import tiny, toy

PROMPT = "The old man looked at"


@pytest.fixture(scope="module")
def plain() -> Decoder:
    return drafttree.load("embedded", "none", "chain:depth=2", dtype="float32")


def test_policies_have_names(plain):
    assert plain.with_policy("talon").policy == Talon()
    assert plain.with_policy("talon:budget=40,margin=0.1").policy == Talon(budget=40, margin=0.1)
    assert plain.with_policy(Talon).policy == Talon()
    assert plain.with_policy(Talon(budget=30)).policy == Talon(budget=30)


def test_verifiers_have_names(plain):
    assert plain.with_verifier("traversal").verifier is Traversal
    assert plain.with_verifier(Traversal).verifier is Traversal
    assert plain.with_verifier("traversal").with_verifier("auto").verifier is None


def test_drafters_have_names(plain):
    assert isinstance(plain.with_drafter("embedded-mtp").drafter, HeadDrafter)
    assert isinstance(plain.with_drafter("mixed:embedded-draft").drafter, MixedDrafter)
    assert isinstance(plain.with_drafter("suffix").drafter, SuffixDrafter)
    assert isinstance(plain.with_drafter(plain.with_drafter("embedded-draft").drafter).drafter, LanguageModelDrafter)
    lookup = plain.with_drafter("lookup:max_ngram=2")
    assert isinstance(lookup.drafter, PromptLookupDrafter)
    assert lookup.with_drafter("none").drafter is None


def test_auto_is_the_drafter_that_load_chooses(plain):
    assert repr(plain.with_drafter("auto").drafter) == repr(drafttree.load(dtype="float32").drafter)


def test_a_loaded_model_drafts():
    target = drafttree.load(tiny.build("llama"), "none", tokenizer=None)
    drafting = target.with_drafter(tiny.build("llama", seed=1))
    assert isinstance(drafting.drafter, LanguageModelDrafter)


def test_every_method_by_name_writes_the_text_of_plain_decoding(plain):
    named = plain.with_drafter("embedded-mtp").with_policy("talon:budget=12").with_verifier("greedy")
    expected = plain.generate(PROMPT, max_new_tokens=12, temperature=0)
    found = named.generate(PROMPT, max_new_tokens=12, temperature=0)
    assert found.tokens == expected.tokens
    assert any(found.drafted)


@pytest.mark.parametrize(
    ("part", "given"),
    [
        ("policy", "talom"),
        ("policy", "talon:budget=x"),
        ("policy", "talon:wide=3"),
        ("policy", 3),
        ("verifier", "greddy"),
        ("verifier", 3),
        ("drafter", "embeded-mtp"),
        ("drafter", "lookup:wide=3"),
        ("drafter", "./nowhere"),
        ("drafter", object()),
    ],
)
def test_what_load_refuses_is_refused_in_the_same_words(plain, part, given):
    def by_load() -> None:
        drafttree.load("embedded", **{"drafter": "none", part: given})

    by_method: Callable[[object], Decoder] = getattr(plain, f"with_{part}")
    with pytest.raises((ConfigError, ModelError)) as loading:
        by_load()
    assert told(type(loading.value), by_method, given) == str(loading.value)


def test_a_file_of_a_tuned_policy_is_for_load(plain):
    assert "is a file of a tuned policy, for load" in told(ConfigError, plain.with_policy, "tuned.json")


def test_a_decoder_that_is_made_of_objects_knows_no_names():
    made = Decoder(toy.ToyModel(lambda _: [0.5] * 8), policy=Chain())
    assert made.with_policy(Talon()).policy == Talon()
    assert "policy is 'talon'; give an object" in told(ConfigError, made.with_policy, "talon")
    assert "drafter is 'lookup'; give an object" in told(ConfigError, made.with_drafter, "lookup")
    assert "verifier is 'greedy'; give a class" in told(ConfigError, made.with_verifier, "greedy")


def test_another_target_keeps_the_names(plain):
    over = plain.with_target(toy.ToyModel(lambda _: [0.5] * 4096, vocab=4096))
    assert isinstance(over.with_drafter("lookup").drafter, PromptLookupDrafter)
    assert "give 'embedded-draft' as an object" in told(ConfigError, over.with_drafter, "embedded-draft")


def test_a_draft_model_is_loaded_once_and_quantised_as_the_first(monkeypatch):
    read, loads = model_drafters.read_model, []
    monkeypatch.setattr(
        model_drafters, "read_model", lambda *given, **named: loads.append(given) or read(*given, **named)
    )
    decoder = drafttree.load("embedded", "embedded-draft", "chain", dtype="float32", quantize_drafter="int8")
    mixed = decoder.with_drafter("mixed:embedded-draft")
    again = mixed.with_policy("talon:budget=12").with_drafter("embedded-draft")
    assert isinstance(mixed.drafter, MixedDrafter)
    assert mixed.drafter.model is again.drafter is decoder.drafter
    assert "lookup" in repr(decoder.with_drafter("lookup").drafter).lower()
    assert len(loads) == 1
    del decoder, mixed, again
    gc.collect()
    other = drafttree.load("embedded", "none", dtype="float32", tokenizer=None).with_drafter("embedded-draft")
    assert len(loads) == 2
    assert other.drafter.nbytes > 1


def test_a_draft_model_of_a_later_name_is_quantised_too():
    decoder = drafttree.load("embedded", "embedded-draft", "chain", dtype="float32", quantize_drafter="int8")
    small = decoder.drafter.nbytes
    parts = decoder.parts
    parts.held.clear()
    assert decoder.with_drafter("mixed:embedded-draft").drafter.nbytes == small
    assert drafttree.load("embedded", "embedded-draft", dtype="float32").drafter.nbytes > small
