"""Rows of lookup drafters: the probabilities a search through the whole text gives, round by round, path by path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.drafters import match_index as recall
from drafttree.drafters import suffix
from drafttree.drafters.lookup import PromptLookupDrafter
from drafttree.drafters.match_index import Confidence, Match
from drafttree.drafters.suffix import SuffixDrafter
from helpers import repeats

VOCAB = 6
KINDS = {"lookup": (PromptLookupDrafter(VOCAB, max_ngram=3), 3), "suffix": (SuffixDrafter(VOCAB), 1000)}
every_kind = pytest.mark.parametrize("kind", KINDS)
some = settings(max_examples=60, deadline=None)


def rows(draft, path) -> list[dict[int, float]]:
    """The rows along a path, root first: probabilities of what is proposed."""
    logits = [draft.root(), *(draft.expand(torch.tensor([[token]]), torch.tensor([[0]])) for token in path)]
    probs = torch.cat(logits, 1)[0].exp()
    assert probs.shape[1] == VOCAB + 1
    assert torch.allclose(probs.sum(1), torch.ones(len(probs)))
    return [{token: float(p) for token, p in enumerate(row[:VOCAB]) if p > 0} for row in probs]


@pytest.fixture(autouse=True)
def every_link(monkeypatch):
    """Counts are those of the whole text if all suffix links are followed."""
    monkeypatch.setattr(suffix, "LINKS", 1000)


@every_kind
@some
@given(text=repeats.texts, path=repeats.paths)
def test_rows_along_a_path_are_those_of_a_search_through_the_text(kind, text, path):
    drafter, most = KINDS[kind]
    draft = drafter.start(text, 64)
    draft.prefill(())
    for length, found in enumerate(rows(draft, path)):
        assert found == pytest.approx(repeats.row(text, path[:length], most), abs=1e-5)


@every_kind
@some
@given(text=repeats.texts, commits=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=4))
def test_a_text_read_by_and_by_gives_the_rows_of_a_text_read_at_once(kind, text, commits):
    drafter, _ = KINDS[kind]
    draft, so_far = drafter.start(text, 64), list(text)
    for tokens in commits:
        rows(draft, [0])
        draft.commit(tokens, ())
        so_far += tokens
    assert rows(draft, [1, 2]) == rows(drafter.start(so_far, 64), [1, 2])


@every_kind
def test_a_frontier_of_several_nodes_is_answered_node_by_node(kind):
    drafter, most = KINDS[kind]
    text = [0, 1, 2, 0, 1, 3, 0, 2, 1, 0, 1]
    draft = drafter.start(text, 64)
    draft.root()
    draft.expand(torch.tensor([[2, 3, 5]]), torch.tensor([[0, 0, 0]]))
    logits = draft.expand(torch.tensor([[0, 0, 1]]), torch.tensor([[1, 0, 2]]))
    assert logits.shape == (1, 3, VOCAB + 1)
    for node, path in enumerate([[3, 0], [2, 0], [5, 1]]):
        found = {token: float(p) for token, p in enumerate(logits[0, node, :VOCAB].exp()) if p > 0}
        assert found == pytest.approx(repeats.row(text, path, most), abs=1e-5)
    assert draft.passes == 3
    assert draft.seconds > 0


@every_kind
def test_a_text_without_repeats_proposes_nothing(kind):
    drafter, _ = KINDS[kind]
    logits = drafter.start([0, 1, 2, 3], 64).root()
    assert logits[0, 0].tolist() == [-torch.inf] * VOCAB + [0.0]


def test_confidence_is_learned_for_matches_of_a_kind():
    confidence = Confidence()
    long, short, wide = Match(20, {1: 1}), Match(1, {1: 1}), Match(1, {1: 1, 2: 1})
    assert [confidence.of(match) for match in (long, short, wide)] == [0.9, 0.25, 0.25]
    for token in (3, 3, 3, 3, 1):
        confidence.learn(long, token)
        confidence.learn(wide, token + 1)
    assert confidence.of(long) == pytest.approx((1 + 2 * 0.9) / 7)
    assert confidence.of(wide) == pytest.approx((1 + 2 * 0.25) / 7)
    assert confidence.of(short) == 0.25
    assert confidence.of(Match(31, {5: 2})) == confidence.of(long)
    assert confidence.of(Match(32, {5: 2})) == 0.95


def test_old_observations_fade():
    confidence, match = Confidence(), Match(1, {1: 1})
    for _ in range(2000):
        confidence.learn(match, 0)
    assert confidence.of(match) < 0.03
    for _ in range(2 * recall.MEMORY):
        confidence.learn(match, 1)
    assert confidence.of(match) > 0.6


def test_only_the_most_recent_followers_are_proposed_and_the_rest_is_left_over():
    after: dict[int, int] = {}
    for token in (7, 7, 7, *range(100, 100 + recall.WIDTH)):
        recall.note(after, token)
    named, left = Confidence().spread(Match(4, after))
    assert set(named) == set(range(100, 100 + recall.WIDTH))
    assert sum(named.values()) + left == pytest.approx(1)
    recall.note(after, 7)
    named, _ = Confidence().spread(Match(4, after))
    assert max(named, key=named.__getitem__) == 7


@every_kind
def test_expected_tokens_are_the_path_probabilities_of_the_likeliest_path(kind):
    drafter, most = KINDS[kind]
    text = [0, 1, 2, 0, 1, 3, 0, 2, 1, 0, 1]
    path, share, total = [], 1.0, 0.0
    for _ in range(3):
        after = repeats.row(text, path, most)
        token = max(after, key=after.__getitem__)
        share *= after[token]
        total += share
        path.append(token)
    draft = drafter.start(text, 64)
    assert draft.expected(3) == pytest.approx(total)
    assert draft.passes == 0
    assert drafter.start([0, 1, 2], 64).expected(3) == 0
