"""Texts that a model writes itself: drawn from its own distribution, as texts and as conversations."""

import pytest
import torch

from drafttree.loading.int4 import samples
from drafttree.loading.int4.samples import sampled_texts
from testing import tiny
from testing.tokenizers import chat_words, spelled


@pytest.fixture
def module():
    return tiny.build("llama")


def test_rows_are_as_long_as_asked_and_the_same_again(module):
    rows = sampled_texts(module, None, 3, 20)
    assert rows.shape == (3, 20)
    assert torch.equal(rows, sampled_texts(module, None, 3, 20))
    assert len(set(map(tuple, rows.tolist()))) == 3


def test_tokens_are_drawn_from_the_models_own_distribution(module):
    rows = sampled_texts(module, None, 4000, 2)
    assert len(set(rows[:, 0].tolist())) == 1
    with torch.inference_mode():
        law = module(rows[:1, :1]).logits[0, -1].softmax(-1)
    counts = torch.bincount(rows[:, 1], minlength=len(law)) / len(rows)
    # the distance that as many draws have from their own law: half the sum of the expected deviations
    expected = float((law * (1 - law) / len(rows)).sqrt().sum()) * (2 / torch.pi) ** 0.5 / 2
    assert float((counts - law).abs().sum()) / 2 < 1.5 * expected


def test_a_text_ends_after_so_many_tokens_and_the_next_begins_from_nothing(module, monkeypatch):
    monkeypatch.setattr(samples, "TEXT", 4)
    (row,) = sampled_texts(module, None, 1, 15).tolist()
    first = row[0]
    assert row[::5] == [first] * 3
    with torch.inference_mode():
        alone = module(torch.tensor([row[5:10]])).logits[0, :-1].softmax(-1)
    drawn = alone.gather(-1, torch.tensor(row[6:10])[:, None])
    assert bool((drawn > 0).all())


def test_a_model_that_chats_writes_conversations_by_the_chat_template(module, monkeypatch):
    monkeypatch.setattr(samples, "QUESTION", 3)
    monkeypatch.setattr(samples, "ANSWER", 4)
    (row,) = sampled_texts(module, chat_words(), 1, 20).tolist()
    assert row[:1] == spelled("user")
    assert row[4:6] == spelled("end assistant")
    assert row[10:11] == spelled("user")
    assert row[14:16] == spelled("end assistant")


def test_a_text_that_repeats_itself_ends(module, monkeypatch):
    monkeypatch.setattr(samples, "draw", lambda weights, uniforms: torch.full(uniforms.shape, 9))
    (row,) = sampled_texts(module, None, 1, 60).tolist()
    assert [place for place, token in enumerate(row) if token != 9] == [0, 33]


def test_progress_ends_with_the_whole(module):
    shares = []
    sampled_texts(module, None, 2, 9, shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1
