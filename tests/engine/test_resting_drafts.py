"""A drafter that rests is told late what has become of the text, and then drafts what it would have drafted anyway."""

from typing import Any

import pytest

from drafttree import Decoder, load
from drafttree.engine.drafting.text_drafting import TextDrafting
from drafttree.policies import Chain

PROMPT = "The old man looked at the sea for a long time"


class Sometimes(Chain):
    """Drafts in some rounds; its state counts them."""

    every: int = 3

    def init_state(self, context) -> int:
        return 0

    def observe(self, state: int, outcome) -> int:
        return state + 1

    def wants_draft(self, state: int, session: object) -> bool:
        return state % self.every == self.every - 1


def rounds(decoder: Decoder) -> list[Any]:
    text = decoder.generate(PROMPT, max_new_tokens=40, ignore_eos=True)
    return [(each.nodes, each.committed, each.ranks) for each in text.metrics.rounds]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "drafter",
    [*(f"embedded-{kind}" for kind in ("draft", "eagle3", "hydra", "medusa")), "suffix", "mixed:embedded-eagle3"],
)
def test_drafts_behind_a_rest_are_those_of_a_session_that_was_told_at_once(drafter, monkeypatch):
    decoder = load("embedded", drafter, policy=Sometimes(depth=3), dtype="float32")
    late = rounds(decoder)
    monkeypatch.setattr(TextDrafting, "rest", lambda self, resting: None)
    assert rounds(decoder) == late
    assert any(committed > 1 for _, committed, _ in late)


def test_a_text_that_is_never_drafted_for_is_not_read_by_the_drafter(monkeypatch):
    decoder = load("embedded", "embedded-draft", policy=Sometimes(depth=3, every=1000), dtype="float32")
    passes = []
    model = decoder.drafter.model
    monkeypatch.setattr(model, "forward", lambda *given, **named: passes.append(given))
    assert len(rounds(decoder)) == 40
    assert not passes


def test_an_engine_draws_the_same_texts_where_its_switch_rests():
    decoder = load("embedded", "embedded-eagle3", policy=Sometimes(depth=3), dtype="float32")
    plain = decoder.plain().generate([PROMPT, PROMPT[:20]], max_new_tokens=24)
    found = decoder.generate([PROMPT, PROMPT[:20]], max_new_tokens=24)
    assert [text.tokens for text in found] == [text.tokens for text in plain]


def test_a_mixed_text_that_rested_is_kept_whole_for_its_next_turn():
    class Never(Chain):
        def wants_draft(self, state, session):
            return False

    decoder = load(drafter="mixed:embedded-eagle3", policy=Never(depth=3), dtype="float32")
    prompt = "The old man looked at the sea for a long time"
    first = decoder.generate(prompt, max_new_tokens=40, ignore_eos=True, reuse_prefix=True)
    second = decoder.generate(prompt + first.text + " and", max_new_tokens=4, reuse_prefix=True)
    assert second.metrics.reused_tokens >= 40
