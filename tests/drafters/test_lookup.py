"""Logits of lookup drafters equal those of a brute-force search of the text, in every round and along every path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.drafters import PromptLookupDrafter, SuffixDrafter, suffix_automaton
from drafttree.drafters.lookup import FADE_AFTER, MAX_FOLLOWERS, Confidence
from drafttree.drafters.suffix_automaton import Match
from drafttree.errors import ConfigError
from helpers import repeats

VOCAB = 6
KINDS = {"lookup": (PromptLookupDrafter(VOCAB, max_ngram=3), 3), "suffix": (SuffixDrafter(VOCAB), 1000)}
every_kind = pytest.mark.parametrize("kind", KINDS)
some = settings(max_examples=60)


def rows(draft, path) -> list[dict[int, float]]:
    """Probabilities of the proposed tokens at every node of a path, root first."""
    logits = [draft.draft_root(), *(draft.draft_level(torch.tensor([[token]]), torch.tensor([[0]])) for token in path)]
    probs = torch.cat(logits, 1)[0].exp()
    assert probs.shape[1] == VOCAB + 1
    assert torch.allclose(probs.sum(1), torch.ones(len(probs)))
    return [{token: float(p) for token, p in enumerate(row[:VOCAB]) if p > 0} for row in probs]


@pytest.fixture(autouse=True)
def every_link(monkeypatch):
    """Follow all suffix links, so that the automaton's counts are exact."""
    monkeypatch.setattr(suffix_automaton, "MAX_LINKS", 1000)


@every_kind
@some
@given(text=repeats.texts, path=repeats.paths)
def test_rows_along_a_path_are_those_of_a_search_through_the_text(kind, text, path):
    drafter, most = KINDS[kind]
    draft = drafter.start(text, 64)
    draft.prefill((), len(text) - 1)
    for length, found in enumerate(rows(draft, path)):
        assert found == pytest.approx(repeats.row(text, path[:length], most), abs=1e-5)


@every_kind
@some
@given(text=repeats.texts, commits=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), max_size=4))
def test_a_text_indexed_in_parts_gives_the_rows_of_a_text_indexed_at_once(kind, text, commits):
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
    draft.draft_root()
    draft.draft_level(torch.tensor([[2, 3, 5]]), torch.tensor([[0, 0, 0]]))
    logits = draft.draft_level(torch.tensor([[0, 0, 1]]), torch.tensor([[1, 0, 2]]))
    assert logits.shape == (1, 3, VOCAB + 1)
    for node, path in enumerate([[3, 0], [2, 0], [5, 1]]):
        found = {token: float(p) for token, p in enumerate(logits[0, node, :VOCAB].exp()) if p > 0}
        assert found == pytest.approx(repeats.row(text, path, most), abs=1e-5)
    assert draft.passes == 3
    assert draft.seconds > 0


@every_kind
def test_a_text_without_repeats_proposes_nothing(kind):
    drafter, _ = KINDS[kind]
    logits = drafter.start([0, 1, 2, 3], 64).draft_root()
    assert logits[0, 0].tolist() == [-torch.inf] * VOCAB + [0.0]


def test_confidence_is_learned_per_bucket_of_matches():
    confidence = Confidence()
    long, short, wide = Match(20, {1: 1}), Match(1, {1: 1}), Match(1, {1: 1, 2: 1})
    assert [confidence.hit_probability(match) for match in (long, short, wide)] == [0.9, 0.25, 0.25]
    for token in (3, 3, 3, 3, 1):
        confidence.learn(long, token)
        confidence.learn(wide, token + 1)
    assert confidence.hit_probability(long) == pytest.approx((1 + 2 * 0.9) / 7)
    assert confidence.hit_probability(wide) == pytest.approx((1 + 2 * 0.25) / 7)
    assert confidence.hit_probability(short) == 0.25
    assert confidence.hit_probability(Match(31, {5: 2})) == confidence.hit_probability(long)
    assert confidence.hit_probability(Match(32, {5: 2})) == 0.95


def test_old_observations_fade():
    confidence, match = Confidence(), Match(1, {1: 1})
    for _ in range(2000):
        confidence.learn(match, 0)
    assert confidence.hit_probability(match) < 0.03
    for _ in range(2 * FADE_AFTER):
        confidence.learn(match, 1)
    assert confidence.hit_probability(match) > 0.6


@pytest.mark.parametrize("kind", [PromptLookupDrafter, SuffixDrafter])
def test_only_the_most_recent_followers_are_proposed(kind):
    recent = range(100, 100 + MAX_FOLLOWERS)
    text = [token for follower in (7, 7, 7, *recent) for token in (0, follower)] + [0]
    draft = kind(200).start(text, 200)
    probs = draft.draft_root()[0, 0].exp()
    assert probs[:200].nonzero()[:, 0].tolist() == [*recent]
    assert float(probs.sum()) == pytest.approx(1)
    draft.commit([7, 0], ())
    assert int(draft.draft_root()[0, 0, :200].argmax()) == 7


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
    assert draft.expect(3) == pytest.approx(total)
    assert draft.passes == 0
    assert drafter.start([0, 1, 2], 64).expect(3) == 0


@pytest.mark.parametrize("given", [1.5, "x", True, None])
def test_max_ngram_that_is_no_whole_number_is_refused(given):
    with pytest.raises(ConfigError, match="it must be a whole number"):
        PromptLookupDrafter(VOCAB, max_ngram=given)


def test_max_ngram_below_one_is_refused():
    with pytest.raises(ConfigError, match="max_ngram is 0"):
        PromptLookupDrafter(8, max_ngram=0)
