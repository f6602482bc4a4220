"""The suffix automaton against a brute-force search of the text, and bounds on its work and size."""

import random
from functools import partial

import pytest
from hypothesis import given, settings

from drafttree.drafters import suffix_automaton
from drafttree.drafters.lookup import MAX_FOLLOWERS, Confidence
from drafttree.drafters.suffix_automaton import State, SuffixAutomaton
from helpers import repeats
from helpers.work import lines

some = settings(max_examples=80)


def automaton(text, max_ngram=None) -> SuffixAutomaton:
    index = SuffixAutomaton(max_ngram)
    for token in text:
        index.append(token)
    return index


def at(index: SuffixAutomaton, path):
    cursor = index.end
    for token in path:
        cursor = index.step(cursor, token)
    return cursor


def states(index: SuffixAutomaton) -> list[State]:
    found, waiting = {}, [index._root]
    while waiting:
        state = waiting.pop()
        if id(state) not in found:
            found[id(state)] = state
            waiting += (index._states[number] for number in state.next.values())
    return list(found.values())


@some
@given(repeats.texts)
def test_paths_of_the_automaton_are_the_substrings_of_the_text(text):
    index = automaton(text)
    strings = {tuple(text[start:end]) for start in range(len(text)) for end in range(start, len(text) + 1)}
    spelled = {()}
    waiting = [((), index._root)]
    while waiting:
        string, state = waiting.pop()
        longer = [((*string, token), index._states[number]) for token, number in state.next.items()]
        spelled |= {string for string, _ in longer}
        waiting += longer
    assert spelled == strings


@some
@given(repeats.texts, repeats.paths)
def test_a_cursor_is_the_longest_suffix_that_occurs_in_the_text(text, path):
    whole = [*text, *path]
    longest = max(size for size in range(len(whole) + 1) if repeats.ends(text, whole[len(whole) - size :]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_automaton, "MAX_LINKS", 1000)
        assert at(automaton(text), path)[1] == longest


@some
@given(repeats.texts, repeats.paths)
def test_counts_are_exact_if_every_suffix_link_is_followed(text, path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_automaton, "MAX_LINKS", 1000)
        index = automaton(text)
        assert index.match(at(index, path)) == repeats.longest(text, path)


@pytest.mark.parametrize("max_ngram", [1, 2, 4, 8])
@some
@given(repeats.texts, repeats.paths)
def test_counts_are_exact_if_matches_are_bounded(max_ngram, text, path):
    index = automaton(text, max_ngram)
    assert index.match(at(index, path)) == repeats.longest(text, path, max_ngram)


@some
@given(repeats.texts, repeats.paths)
def test_counts_never_exceed_the_occurrences_if_few_links_are_followed(text, path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_automaton, "MAX_LINKS", 2)
        index = automaton(text)
        whole = [*text, *path]
        if match := index.match(at(index, path)):
            exact = repeats.followers(text, whole[len(whole) - match.length :])
            assert match.followers.keys() <= exact.keys()
            assert all(count <= exact[token] for token, count in match.followers.items())


def test_a_longer_match_is_preferred_to_a_more_frequent_one():
    index = automaton([1, 2, 3, 9, 2, 3, 8, 2, 3, 8, 1, 2, 3])
    assert index.match(index.end) == (3, {9: 1})
    assert index.match(at(index, [8, 2, 3])) == (5, {8: 1})


def fibonacci(length: int) -> list[int]:
    one, two = [0], [0, 1]
    while len(two) < length:
        one, two = two, two + one
    return two[:length]


def english(length: int) -> list[int]:
    """Words of a skewed distribution, with phrases that come again."""
    rng, text = random.Random(0), []
    while len(text) < length:
        again = rng.randrange(len(text)) if text and rng.random() < 0.1 else None
        text += text[again : again + 12] if again is not None else [int(rng.paretovariate(0.7))]
    return text[:length]


STREAMS = {
    "one token": lambda length: [0] * length,
    "a loop": lambda length: [at % 7 for at in range(length)],
    "fibonacci": fibonacci,
    "three letters": lambda length: random.Random(1).choices(range(3), k=length),
    "many letters": lambda length: random.Random(2).choices(range(4000), k=length),
    "all different": lambda length: list(range(length)),
    "english": english,
}
every_stream = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
every_bound = pytest.mark.parametrize("max_ngram", [None, 8])


@pytest.mark.few(7)
@every_bound
@every_stream
def test_the_work_of_a_token_does_not_grow_with_the_text(stream, max_ngram):
    texts = stream(400), stream(3200)
    short, long = ((lines(lambda text=text: automaton(text, max_ngram)) / len(text)) for text in texts)
    assert long < 1.1 * short + 2
    assert long < 130


@every_stream
def test_size_is_linear(stream):
    text = stream(2000)
    found = states(automaton(text))
    assert len(found) < 2 * len(text)
    assert sum(len(state.next) for state in found) < 3 * len(text)
    assert all(state.followers.keys() <= state.next.keys() for state in found)


@every_bound
@every_stream
def test_match_and_step_take_bounded_work(stream, max_ngram):
    for length in (200, 3200):
        index = automaton(stream(length), max_ngram)
        for path in ([], [0], [1, 0], [1, 0, 5]):
            cursor = at(index, path)
            assert lines(partial(index.match, cursor)) < 60
            assert lines(partial(index.step, cursor, 1)) < 60
            probs, _ = Confidence().next_token_probs(index.match(cursor))
            assert len(probs) <= MAX_FOLLOWERS


def test_a_long_automaton_is_freed_without_deep_recursion():
    index = automaton([0] * 60_000)
    del index
