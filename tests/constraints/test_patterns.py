"""Regular expressions; what Python matches is the judge."""

import itertools
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.constraints import grammar
from drafttree.constraints.patterns import join_halves, whole_pattern
from drafttree.errors import ConfigError
from testing.grammars import accepts, written

pytest.importorskip("llguidance")

TEXTS = ["".join(text) for length in range(5) for text in itertools.product("ab", repeat=length)]
PARTS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "(?:)", "^", "$"]),
    lambda inside: (
        st.lists(inside, min_size=1, max_size=3).map("".join)
        | st.lists(inside, min_size=1, max_size=2).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.tuples(inside, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "*?"])).map(
            lambda part: f"({part[0]}){part[1]}"
        )
    ),
    max_leaves=8,
)


@settings(max_examples=30, deadline=None)
@given(PARTS)
def test_patterns_match_what_they_match_in_python(pattern):
    """Or they are refused, as most are that have anchors inside."""
    for make, matches, form in (
        (grammar.regex, re.fullmatch, "{}"),
        (lambda each: grammar.json_schema({"type": "string", "pattern": each}), re.search, '"{}"'),
    ):
        refused = ""
        found = expected = {text for text in TEXTS if matches(pattern, text)}
        try:
            made = make(pattern)
            found = {text for text in TEXTS if accepts(made, form.format(text))}
        except ConfigError as error:
            refused = str(error)
        assert not refused or "^" in pattern or "$" in pattern or "allows no text" in refused
        assert found == expected


@settings(max_examples=100)
@given(PARTS)
def test_a_pattern_for_whole_texts_matches_those_of_which_a_part_matches(pattern):
    whole = whole_pattern(pattern)
    if not re.search(r"[$^]", re.sub(r"\[[^\]]*\]", "", whole)):
        for text in TEXTS:
            assert bool(re.fullmatch(whole, text)) == bool(re.search(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("[[a]+", "[a", "b"),
        ("[a&&b]+", "a&b", "c"),
        ("[a~~b]", "~", "c"),
        (r"[\w-]+", "a-b_1", "é"),
        (r"[+-\d]+", "+-9", "["),
        (r"[^\W]+", "ab", "-"),
        (r"[\S]+", "é", "\u2003"),
        (r"\d+", "12", "\u0663"),
        (r"\D", "\u0663", "1"),
        (r"\/a/", "/a/", "a"),
        ("[/]", "/", "a"),
        (r"\u0061\x62\u{63}", "abc", "abd"),
        (r"(?<name>a)(?P<other>b)", "ab", "a"),
        ("a\nb", "a\nb", "a b"),
        (r"\<a\>", "<a>", "a"),
        (r"\p{Lu}", "É", "é"),
        ("é|ü", "ü", "e"),
    ],
)
def test_what_rust_reads_otherwise_is_read_as_in_javascript(pattern, good, bad):
    for make, form in (
        (grammar.regex, str),
        (lambda each: grammar.json_schema({"type": "string", "pattern": f"^{each}$"}), json.dumps),
    ):
        if "|" in pattern and form is json.dumps:
            continue
        made = make(pattern)
        assert accepts(made, form(good) if form is str else json.dumps(good, ensure_ascii=False))
        assert not accepts(made, form(bad) if form is str else json.dumps(bad, ensure_ascii=False))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("[]a]", "read in several ways"),
        ("[^]", "read in several ways"),
        ("[!--]", "escape the hyphens"),
        ("a++", r"'\+' at position 2 repeats a repetition"),
        ("(?i)a", r"'\(\?i\)' at position 0"),
        ("a(?-u:b)", r"sets flags"),
        (r"(a)\1", "backreferences are not supported"),
        ("[a", "unclosed character class"),
        ("a)", "unopened group"),
        ("a{3,2}", "invalid repetition count range"),
    ],
)
def test_what_has_no_one_meaning_is_refused(pattern, words):
    for make in (grammar.regex, lambda each: grammar.json_schema({"type": "string", "pattern": each})):
        with pytest.raises(ConfigError, match=words) as error:
            make(pattern)
        assert "\n" not in str(error.value)


WALKED = [
    r"\d{4}-\d{2}-\d{2}",
    "(red|green|blue)(, (red|green|blue))*",
    "#[0-9a-fA-F]{6}",
    ".{3,9}",
    '[^"\\n]{1,9}\\.',
    r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)",
    r"[A-Z][a-z]+( [A-Z][a-z]+){1,3}",
    r"(a|ab)(c|bcd)(d*)",
    r"[^a-y]+",
    r"\w+@\w+\.com",
]


@pytest.mark.few(2)
@pytest.mark.parametrize("pattern", WALKED)
def test_whatever_is_written_matches(pattern):
    """Texts are drawn byte by byte from those that the grammar allows."""
    draw, made = random.Random(pattern), grammar.regex(pattern)
    for _ in range(150):
        text = written(made, draw)
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    ("pattern", "text"), [(r"^\uD83D\uDE00$", "😀"), (r"^[\uD83D\uDE00\uD83D\uDE01]$", "😁"), (r"^\\ud83d$", None)]
)
def test_halves_that_javascript_writes_are_one_character(pattern, text):
    joined = join_halves("regex", pattern)
    assert bool(text) == (joined != pattern)
    if text:
        assert accepts(grammar.json_schema({"type": "string", "pattern": pattern}), f'"{text}"')
        assert accepts(grammar.regex(pattern), text)


@pytest.mark.parametrize("pattern", [r"\ud83d", r"[\uDE00]", r"\u{D83D}", r"\uDE00\uD83D"])
def test_half_a_character_is_refused(pattern):
    for make in (grammar.regex, lambda pattern: grammar.json_schema({"type": "string", "pattern": pattern})):
        with pytest.raises(ConfigError, match="is half a surrogate pair, which no text has"):
            make(pattern)
