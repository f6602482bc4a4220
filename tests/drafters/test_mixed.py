"""Mixed drafting: which drafter drafts which round, and the model's KV cache after rounds it did not draft."""

import itertools

import pytest

from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter, MixedDrafter, SuffixDrafter
from drafttree.drafters.language_model import LanguageModelSession
from drafttree.drafters.lookup import LookupSession
from drafttree.policies import Chain, Talon
from testing import tiny
from testing.small_trees import DRAFT, PROMPT, TARGET, VOCAB
from testing.toy import Script, ToyDrafter, ToyModel, greedy_text


class Watched:
    """Wraps a drafter and keeps its newest session."""

    def __init__(self, drafter) -> None:
        self.drafter = drafter
        self.vocab_size, self.context = drafter.vocab_size, drafter.context
        self.levels, self.hidden_layers, self.nbytes = drafter.levels, drafter.hidden_layers, drafter.nbytes

    def start(self, prompt, capacity):
        self.draft = self.drafter.start(prompt, capacity)
        return self.draft


class Checked(LanguageModelDrafter):
    """A language model drafter that recomputes the root logits of every round from all tokens."""

    def start(self, prompt, capacity):
        return CheckedDraft(self, prompt, capacity)


class CheckedDraft(LanguageModelSession):
    def __init__(self, drafter, prompt, capacity) -> None:
        super().__init__(drafter, prompt, capacity)
        self.text, self.checks = list(prompt), []
        CheckedDraft.last = self

    def draft_root(self):
        logits = super().draft_root()
        recomputed = LanguageModelSession(self.drafter, self.text, 8).draft_root()
        self.checks.append(float((logits - recomputed).abs().max()))
        return logits

    def commit(self, tokens, hidden_states):
        super().commit(tokens, hidden_states)
        self.text += tokens


@pytest.mark.few(2)
@pytest.mark.parametrize("turns", [[0, 9], [0, 9, 9], [9, 0], [0, 0, 9, 9, 9]])
def test_the_models_cache_is_right_after_rounds_it_did_not_draft(turns, monkeypatch):
    """Lookup and the model take turns; the model reads the tokens it missed, once."""
    turn = itertools.cycle(turns)
    monkeypatch.setattr(LookupSession, "expect", lambda self, levels: next(turn))
    target, module = tiny.wrap(tiny.build("llama"))[0], tiny.wrap(tiny.build("qwen3", seed=4))[0]
    mixed = Watched(MixedDrafter(SuffixDrafter(tiny.VOCAB), Checked(module)))
    decoder = Decoder(target, mixed, Talon(width=3, budget=9))
    prompt = tiny.random_tokens(7, 2) * 2
    out = decoder.generate(prompt, max_new_tokens=30)
    assert out.tokens == decoder.plain().generate(prompt, max_new_tokens=30).tokens
    checked = CheckedDraft.last
    assert len(checked.checks) == model_rounds(out) > 3
    assert out.metrics.lookup_rounds > 3
    assert max(checked.checks) < 1e-4
    assert checked.text == prompt + out.tokens


def model_rounds(out) -> int:
    return len(out.metrics.rounds) - out.metrics.lookup_rounds


def mixed(law, draft, vocab=VOCAB) -> tuple[Decoder, Watched]:
    watched = Watched(MixedDrafter(SuffixDrafter(vocab), ToyDrafter(draft, vocab)))
    return Decoder(ToyModel(law, vocab), watched, Chain(depth=4)), watched


def test_lookup_drafts_a_repetitive_text():
    verse = [1, 2, 3, 4, 2, 5, 6, 7, 0, 3] * 6
    decoder, _ = mixed(Script(verse, VOCAB), DRAFT)
    out = decoder.generate([0], max_new_tokens=len(verse))
    assert out.tokens == verse
    assert out.metrics.lookup_rounds > model_rounds(out)
    assert sum(out.drafted[-20:]) >= 15  # a chain of 4 and the bonus token, round after round


def test_the_model_drafts_a_text_without_repetitions():
    law = Script(list(range(60)), 64)
    decoder, _ = mixed(law, law, 64)
    out = decoder.generate([63], max_new_tokens=50)
    assert out.tokens == list(range(50))
    assert out.metrics.lookup_rounds == 0
    assert len(out.metrics.rounds) == 10


@pytest.mark.parametrize(("draft", "by_model"), [(TARGET, True), (Script([0], VOCAB), False)], ids=["right", "wrong"])
def test_the_drafter_with_more_accepted_tokens_drafts_most_rounds(draft, by_model):
    """On a text where lookup always has a match that is often wrong."""
    decoder, _ = mixed(TARGET, draft)
    out = decoder.generate([*PROMPT, *greedy_text(TARGET, PROMPT, 40)], max_new_tokens=60, temperature=1.0, seed=0)
    assert (model_rounds(out) > out.metrics.lookup_rounds) == by_model


def test_a_model_that_once_failed_is_tried_again():
    """A text that the model cannot predict is followed by one that only the model can."""
    verse, rest = [1, 2, 3, 1, 2, 4] * 30, [5, 6, 7, 0, 5, 7, 6, 0, 7, 5, 0, 6]
    law = Script(verse + rest, VOCAB)
    draft = Script([9] * len(verse) + rest, VOCAB)
    decoder, _ = mixed(law, draft)
    out = decoder.generate([0], max_new_tokens=len(verse + rest))
    assert out.metrics.lookup_rounds > 20
    assert sum(out.drafted[-len(rest) :]) >= 4


def test_the_same_seed_gives_the_same_rounds():
    shapes = []
    for _ in range(2):
        decoder, _ = mixed(TARGET, DRAFT)
        metrics = decoder.generate(PROMPT, max_new_tokens=40, temperature=1.0, seed=3).metrics
        shapes.append([(r.committed, r.accepted, r.nodes, r.levels, r.draft_passes) for r in metrics.rounds])
    assert shapes[0] == shapes[1]


def test_passes_and_seconds_are_those_of_both():
    decoder, watched = mixed(Script([1, 2, 3] * 20, VOCAB), DRAFT)
    out = decoder.generate([0], max_new_tokens=40)
    draft = watched.draft
    assert out.metrics.lookup_rounds
    assert model_rounds(out)
    assert sum(round_.draft_passes for round_ in out.metrics.rounds) == draft.passes
    assert draft.passes == draft._lookup.passes + draft._model.passes
    assert draft.seconds >= draft._lookup.seconds - 1e-3


def test_a_mixed_drafter_has_the_context_and_hidden_layers_of_its_model():
    class Headed(ToyDrafter):
        def __init__(self) -> None:
            super().__init__(DRAFT, context=32)
            self.hidden_layers = (1, 2)

    both = MixedDrafter(SuffixDrafter(VOCAB), Headed())
    assert (both.vocab_size, both.context, both.hidden_layers) == (VOCAB, 32, (1, 2))


@pytest.mark.parametrize("expected", [0.0, 0.3, 9.0])
def test_it_tells_what_lookup_expects(expected, monkeypatch):
    monkeypatch.setattr(LookupSession, "expect", lambda self, levels: expected)
    session = MixedDrafter(SuffixDrafter(tiny.VOCAB), SuffixDrafter(tiny.VOCAB)).start([1, 2, 3], 32)
    assert session.expected_accepted == expected


def test_the_source_that_is_named_drafts():
    model = LanguageModelDrafter(ToyModel(DRAFT, VOCAB))
    session = MixedDrafter(SuffixDrafter(VOCAB), model).start(PROMPT, 64)
    assert isinstance(session.choose(0), LookupSession)
    assert isinstance(session.choose(1), LanguageModelSession)
    session.choose(1).draft_root()
    session.commit([1, 2], ())
    session.choose(0).draft_root()
    assert session.passes == 2
