"""The suffix automaton against substrings counted by hand, and the work it takes."""

import random
from functools import partial

import pytest
from hypothesis import given, settings

from drafttree.drafters import suffix
from drafttree.drafters.match_index import WIDTH, Confidence
from drafttree.drafters.suffix import State, SuffixAutomaton
from helpers import repeats
from helpers.work import lines

some = settings(max_examples=80, deadline=None)


def automaton(text) -> SuffixAutomaton:
    memory = SuffixAutomaton()
    for token in text:
        memory.append(token)
    return memory


def at(memory: SuffixAutomaton, path):
    place = memory.end()
    for token in path:
        place = memory.step(place, token)
    return place


def states(memory: SuffixAutomaton) -> list[State]:
    found, waiting = {}, [memory._root]
    while waiting:
        state = waiting.pop()
        if id(state) not in found:
            found[id(state)] = state
            waiting += state.next.values()
    return list(found.values())


@some
@given(repeats.texts)
def test_its_paths_are_the_substrings_of_the_text(text):
    memory = automaton(text)
    strings = {tuple(text[start:end]) for start in range(len(text)) for end in range(start, len(text) + 1)}
    spelled = {()}
    waiting = [((), memory._root)]
    while waiting:
        string, state = waiting.pop()
        longer = [((*string, token), after) for token, after in state.next.items()]
        spelled |= {string for string, _ in longer}
        waiting += longer
    assert spelled == strings


@some
@given(repeats.texts, repeats.paths)
def test_a_place_is_the_longest_end_that_occurs_in_the_text(text, path):
    whole = [*text, *path]
    longest = max(size for size in range(len(whole) + 1) if repeats.ends(text, whole[len(whole) - size :]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "LINKS", 1000)
        assert at(automaton(text), path)[1] == longest


@some
@given(repeats.texts, repeats.paths)
def test_counts_are_the_occurrences_where_every_link_is_followed(text, path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "LINKS", 1000)
        memory = automaton(text)
        assert memory.match(at(memory, path)) == repeats.longest(text, path)


@some
@given(repeats.texts, repeats.paths)
def test_counts_never_exceed_the_occurrences_where_few_links_are_followed(text, path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "LINKS", 2)
        memory = automaton(text)
        whole = [*text, *path]
        if match := memory.match(at(memory, path)):
            exact = repeats.followers(text, whole[len(whole) - match.length :])
            assert match.followers.keys() <= exact.keys()
            assert all(count <= exact[token] for token, count in match.followers.items())


def test_a_longer_match_is_preferred_to_a_more_frequent_one():
    memory = automaton([1, 2, 3, 9, 2, 3, 8, 2, 3, 8, 1, 2, 3])
    assert memory.match(memory.end()) == (3, {9: 1})
    assert memory.match(at(memory, [8, 2, 3])) == (5, {8: 1})


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
    "a loop": lambda length: [place % 7 for place in range(length)],
    "fibonacci": fibonacci,
    "three letters": lambda length: random.Random(1).choices(range(3), k=length),
    "many letters": lambda length: random.Random(2).choices(range(4000), k=length),
    "all different": lambda length: list(range(length)),
    "english": english,
}
every_stream = pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)


@every_stream
def test_the_work_of_a_token_does_not_grow_with_the_text(stream):
    short, long = ((lines(lambda text=text: automaton(text)) / len(text)) for text in (stream(400), stream(3200)))
    assert long < 1.1 * short + 2
    assert long < 120


@every_stream
def test_size_is_linear(stream):
    text = stream(2000)
    found = states(automaton(text))
    assert len(found) < 2 * len(text)
    assert sum(len(state.next) for state in found) < 3 * len(text)
    assert all(state.followers.keys() <= state.next.keys() for state in found)


@every_stream
def test_looking_for_matches_takes_bounded_work(stream):
    for length in (200, 3200):
        memory = automaton(stream(length))
        for path in ([], [0], [1, 0], [1, 0, 5]):
            place = at(memory, path)
            assert lines(partial(memory.match, place)) < 60
            assert lines(partial(memory.step, place, 1)) < 60
            named, _ = Confidence().spread(memory.match(place))
            assert len(named) <= WIDTH


def test_a_long_text_is_let_go_of_quietly():
    memory = automaton([0] * 60_000)
    del memory
