import functools
import itertools
import re

import pytest
import xgrammar
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xgrammar.testing import _is_grammar_accept_string

from drafttree.constraints import grammar
from drafttree.constraints.string_patterns import ignored_anchor, join_halves
from drafttree.errors import ConfigError

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


@settings(max_examples=1000)
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


VOCABULARY = [*map(chr, range(32, 127)), "\n", "</s>"]
SPELLINGS = st.recursive(
    st.sampled_from(["a", "b", "[ab]", '"', r"\\", r"\n", r'["\\]', '[a"]', "."]),
    lambda inside: (
        st.lists(inside, min_size=1, max_size=3).map("".join)
        | st.lists(inside, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})")
        | st.tuples(inside, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map(lambda part: f"({part[0]}){part[1]}")
    ),
    max_leaves=6,
)


@functools.cache
def compiler():
    info = xgrammar.TokenizerInfo(VOCABULARY, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[len(VOCABULARY) - 1])
    return xgrammar.GrammarCompiler(info)


@settings(max_examples=300)
@given(SPELLINGS)
@example(r"^(a\\|b)$")
@example(r"^(a(c|\\)\\|b)$")
def test_a_text_of_a_pattern_can_always_go_on(pattern):
    """Where a pattern is accepted, xgrammar allows a token behind every text that it allows."""
    try:
        made = grammar.json_schema({"type": "string", "pattern": pattern})
    except ConfigError:
        return
    matcher = xgrammar.GrammarMatcher(compiler().compile_grammar(made.parsed))
    mask = xgrammar.allocate_token_bitmask(1, len(VOCABULARY))

    def walk(left: int) -> None:
        matcher.fill_next_token_bitmask(mask)
        allowed = [token for token in range(len(VOCABULARY)) if mask[0, token // 32] >> token % 32 & 1]
        assert allowed
        named = [VOCABULARY.index(character) for character in '"ab' if VOCABULARY.index(character) in allowed]
        for token in named if left else ():
            assert matcher.accept_token(token)
            walk(left - 1)
            matcher.rollback(1)

    walk(6)


@pytest.mark.parametrize(
    "pattern", [r'^(?:[^"\\]|\\.)*$', r"^(\n|x)*$", r"a(\\|b)", '^(a"?b)$', r"[\\/]x", r"^(\\b|c)$"]
)
def test_patterns_that_do_without_escaped_characters_are_accepted(pattern):
    grammar.json_schema({"type": "string", "pattern": pattern})


@pytest.mark.parametrize(
    "pattern", [r"^(a\\|b)$", '^(a"|b)$', r"^(a?\\|b)$", r"^(ab\\)?c$", r"(x|y(\n|\t)z)", r"a[\\\"]{2}|b"]
)
def test_patterns_that_would_end_in_nothing_are_refused(pattern):
    with pytest.raises(ConfigError, match="xgrammar would not escape"):
        grammar.json_schema({"type": "string", "pattern": pattern})


@pytest.mark.parametrize(
    ("pattern", "text"), [(r"^\uD83D\uDE00$", "😀"), (r"^[\uD83D\uDE00\uD83D\uDE01]$", "😁"), (r"^\\ud83d$", None)]
)
def test_halves_that_javascript_writes_are_one_character(pattern, text):
    joined = join_halves("regex", pattern)
    assert bool(text) == (joined != pattern)
    if text:
        parsed = grammar.json_schema({"type": "string", "pattern": pattern}).parsed
        assert _is_grammar_accept_string(parsed, f'"{text}"')
        assert _is_grammar_accept_string(grammar.regex(pattern).parsed, text)


@pytest.mark.parametrize("pattern", [r"\ud83d", r"[\uDE00]", r"\u{D83D}", r"\uDE00\uD83D"])
def test_half_a_character_is_refused(pattern):
    for make in (grammar.regex, lambda pattern: grammar.json_schema({"type": "string", "pattern": pattern})):
        with pytest.raises(ConfigError, match="is half a surrogate pair, which no text has"):
            make(pattern)
