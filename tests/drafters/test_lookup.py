"""The table of n-grams: constant work for every token."""

import pytest
from hypothesis import given, settings

from drafttree.core.errors import ConfigError
from drafttree.drafters.lookup import NgramIndex, PromptLookupDrafter
from helpers import repeats
from helpers.work import lines


@settings(max_examples=60, deadline=None)
@given(repeats.texts, repeats.paths)
def test_the_longest_ngram_that_occurred_before_and_what_followed_it(text, path):
    memory = NgramIndex(4)
    for token in text:
        memory.append(token)
    place = memory.end()
    for token in path:
        place = memory.step(place, token)
    assert memory.match(place) == repeats.longest(text, path, 4)


def test_the_work_of_a_token_does_not_grow_with_the_text():
    memory = NgramIndex(4)
    spent = [lines(lambda token=place * place % 7: memory.append(token)) for place in range(600)]
    assert len(set(spent[4:])) == 1


def test_a_match_needs_a_token():
    with pytest.raises(ConfigError, match="max_ngram is 0"):
        PromptLookupDrafter(8, max_ngram=0)
