"""Patterns of names, compared with Python's `re`, and those on which `re` never ends."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.constraints import name_patterns
from drafttree.constraints.name_patterns import NamePatterns

ATOMS = ["a", "b", "-", ".", "^", "$", "[ab]", "[^a]", r"\d", r"\w", r"\W", r"[\w-]", r"\-", r"[^\d]", "é"]
COUNTS = ["*", "+", "?", "{2}", "{0}", "{1,2}", "{0,3}", "{2,}", "*?"]


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    either = st.builds("{}|{}".format, inner, inner)
    group = st.builds("{}{})".format, st.sampled_from(["(", "(?:"]), either | inner)
    return (
        st.builds(str.__add__, inner, inner)
        | either
        | group
        | st.builds("({}){}".format, inner, st.sampled_from(COUNTS))
    )


@settings(max_examples=600)
@given(st.recursive(st.sampled_from(ATOMS), larger, max_leaves=8), st.text("ab-1é", max_size=6))
def test_what_may_match_is_what_pythons_search_finds(pattern, name):
    """Beyond ASCII, a match may take one character's class from Unicode and another's from ASCII."""
    found = [bool(re.search(pattern, name, flags)) for flags in (re.UNICODE, re.ASCII)]
    judged = NamePatterns().may_match(pattern, name)
    assert judged >= any(found)
    if name.isascii():
        assert judged == any(found)


@pytest.mark.parametrize(
    ("pattern", "name", "may"),
    [
        ("^x-", "name", False),
        ("^x-", "x-name", True),
        ("^(a|b)$", "ab", False),
        ("^a|b$", "xb", True),
        (r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", "no-word", False),
        (r"^\d{4}-\d{2}$", "2024-1", False),
        (r"^[^\]]$", "]", False),
        ("^.{3,1000000}$", "ab", False),
        ("^$", "a", False),
    ],
)
def test_usual_patterns_are_judged(pattern, name, may):
    assert NamePatterns().may_match(pattern, name) is may


@pytest.mark.parametrize(
    "pattern", ["a(", "a)", "(?=b)b", r"(b)\1", r"\bb", r"\p{L}", "[]b]", "[a--b]", "b++", "{2}", "a{,3}", "[z-a]", "+"]
)
def test_what_dialects_differ_in_may_match(pattern):
    assert NamePatterns().may_match(pattern, "x")


def test_names_that_are_not_printable_may_match():
    for name in ("a\n", "\x1c", "\ud800", "\u2028"):
        assert NamePatterns().may_match("^q$", name)


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|aa)+$", "^(a?){40}a{40}$", "(.*a){20}!!"])
def test_patterns_on_which_a_search_never_ends_are_judged(pattern):
    assert not NamePatterns().may_match(pattern, "a" * 39 + "!")


def test_what_takes_too_many_steps_may_match(monkeypatch):
    monkeypatch.setattr(name_patterns, "MAX_STEPS", 1000)
    names = NamePatterns()
    assert not names.may_match("^(a+)+$", "a!")
    assert names.may_match("^(a+)+$", "a" * 1000 + "!")
    assert names.may_match("^b$", "a")  # the steps are those of all patterns of a document
    assert names.may_match("(" * 60 + "a" + ")" * 60, "b")
