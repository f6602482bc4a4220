import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.constraints.string_patterns import ignored_anchor

TEXTS = ["".join(text) for length in range(5) for text in itertools.product("ab", repeat=length)]
PARTS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "^", "$"]),
    lambda inside: (
        st.lists(inside, min_size=1, max_size=3).map("".join)
        | st.lists(inside, min_size=1, max_size=2).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.tuples(inside, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map(lambda part: f"({part[0]}){part[1]}")
    ),
    max_leaves=8,
)


@settings(max_examples=1000, deadline=None)
@given(PARTS)
def test_a_pattern_without_its_anchors_matches_the_same_texts(pattern):
    """What Python matches is the judge."""
    if ignored_anchor(pattern) is None:
        without = re.sub(r"[$^]", "(?:)", pattern)
        for text in TEXTS:
            assert not re.fullmatch(without, text) or re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    "pattern",
    ["^a$|^b$", "[$^]", r"a\$b", "^(a|b)+$", "((^a))", "(^a$)|(^b$)", "a(b$)?", "^(?:^a|b)c", r"^\p{Lu}$", "^$", "a"],
)
def test_anchors_at_the_ends_are_not_ignored(pattern):
    assert ignored_anchor(pattern) is None


@pytest.mark.parametrize(
    ("pattern", "place"),
    [("a$b", 1), ("(a$)b", 2), ("a^", 1), ("(^a)*", 1), ("(a$)+", 2), ("(b|^a){2}", 3), ("(a|b$)c", 4), ("a(^b)?", 2)],
)
def test_the_first_ignored_anchor_is_found(pattern, place):
    anchor = ignored_anchor(pattern)
    assert anchor is not None
    assert anchor.start() == place
