"""The n-gram table agrees with a search through the text, and its work per token is constant."""

import pytest
from hypothesis import given, settings

from drafttree.drafters import PromptLookupDrafter
from drafttree.drafters.lookup import NgramIndex
from drafttree.errors import ConfigError
from helpers import repeats
from helpers.work import lines


@settings(max_examples=60)
@given(repeats.texts, repeats.paths)
def test_match_is_the_longest_ngram_that_occurred_before_and_its_followers(text, path):
    index = NgramIndex(4)
    for token in text:
        index.append(token)
    cursor = index.end()
    for token in path:
        cursor = index.step(cursor, token)
    assert index.match(cursor) == repeats.longest(text, path, 4)


def test_the_work_of_a_token_does_not_grow_with_the_text():
    index = NgramIndex(4)
    spent = [lines(lambda token=at * at % 7: index.append(token)) for at in range(600)]
    assert len(set(spent[4:])) == 1


def test_max_ngram_below_one_is_refused():
    with pytest.raises(ConfigError, match="max_ngram is 0"):
        PromptLookupDrafter(8, max_ngram=0)
