"""Regular expressions; what Python matches is the judge."""

import itertools
import json
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.constraints import grammar
from drafttree.constraints.lark import Rules, matching
from drafttree.constraints.patterns import join_halves, texts_with
from drafttree.errors import ConfigError
from testing.grammars import accepts, conforming, written
from testing.json_spellings import CHARACTERS, spelled, spellings
from testing.json_spellings import TEXTS as TEXTS_OF_JSON

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
        try:
            made = make(pattern)
        except ConfigError:
            assert "^" in pattern or "$" in pattern
            continue
        expected = [bool(matches(pattern, text)) for text in TEXTS]
        assert conforming(made, [form.format(text) for text in TEXTS]) == expected


@settings(max_examples=100)
@given(PARTS)
def test_a_pattern_stands_for_the_texts_of_which_a_part_matches(pattern):
    """In arguments that stand between marks without quotes; or it is refused, as most are that have anchors inside."""
    rules = Rules()
    try:
        texts = rules.add(texts_with("pattern", pattern, rules, as_json=False), plain=True)
    except ConfigError:
        assert "^" in pattern or "$" in pattern
        return
    assert matching(rules.grammar(texts), TEXTS) == [bool(re.search(pattern, text)) for text in TEXTS]


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
        ("[]a]", "ambiguous among regex dialects"),
        ("[^]", "ambiguous among regex dialects"),
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


CLASSES = [
    '[^"]',
    r"[^\\]",
    '[^<>"]',
    r"[^\/:*?\"<>|\\]",
    ".",
    "[^a]",
    r"[^\t ]",
    r"[^\w]",
    r'["\\]',
    r"[\x00-\x1f]",
    r'[^"\x00-\x1f]',
]
CLASSES += [
    r"\D",
    r"[^\x00-\x7f]",
    "[é-\U0001f600]",
    r"[\ud83d\ude00]",
    r"\u2019",
    '"',
    r"\\",
    r"\/",
    r"[\t-]",
    r"[^,\]]",
]
PIECES = st.tuples(st.sampled_from(CLASSES), st.sampled_from(["", "*", "+", "?", "{2}"])).map("".join)
JSON_PATTERNS = st.tuples(
    st.sampled_from(["", "^"]), st.lists(PIECES, min_size=1, max_size=3).map("".join), st.sampled_from(["", "$"])
).map("".join)


def in_python(pattern: str) -> re.Pattern:
    """The same in Python's dialect, where `.` is any character but a line feed, and `$` may stand before a last one."""
    written = re.sub(r"\\ud83d\\ude00", "\U0001f600", pattern)
    written = re.sub(r"(\[(?:\\.|[^\]\\])*\]|\\.)|(\.)", lambda part: part[1] or r"[^\n\r\u2028\u2029]", written)
    return re.compile(written.removesuffix("$") + r"\Z" * written.endswith("$"), re.ASCII)


@st.composite
def strings(draw) -> list[tuple[str, str]]:
    """Texts, and each as a string of JSON."""
    texts = draw(st.lists(TEXTS_OF_JSON, min_size=6, max_size=12, unique=True))
    return [(text, draw(spelled(text))) for text in texts]


def check_strings(pattern: str, texts: list[tuple[str, str]]) -> None:
    expected = [bool(in_python(pattern).search(text)) for text, _ in texts]
    values = {"type": "string", "pattern": pattern}
    names = {"type": "object", "patternProperties": {pattern: True}, "additionalProperties": False}
    all_names = {"type": "object", "propertyNames": {"pattern": pattern}, "additionalProperties": True}
    assert conforming(grammar.json_schema(values), [string for _, string in texts]) == expected
    for schema in (names, all_names):
        assert conforming(grammar.json_schema(schema), [f"{{{string}: 1}}" for _, string in texts]) == expected


@given(JSON_PATTERNS, strings())
@settings(max_examples=40)
def test_patterns_of_strings_and_names_match_what_they_match_in_python(pattern, texts):
    check_strings(pattern, texts)


@pytest.mark.slow
@given(JSON_PATTERNS, strings())
@settings(max_examples=2_000)
def test_any_patterns_of_strings_and_names_match_what_they_match_in_python(pattern, texts):
    """`test_patterns_of_strings_and_names_match_what_they_match_in_python` is the quick one."""
    check_strings(pattern, texts)


@pytest.mark.parametrize("pattern", CLASSES)
def test_classes_with_quotes_and_backslashes_are_enforced(pattern):
    made = grammar.json_schema({"type": "string", "pattern": f"^{pattern}$"})
    names = grammar.json_schema(
        {"type": "object", "patternProperties": {f"^{pattern}$": True}, "additionalProperties": False}
    )
    for character in CHARACTERS:
        ways, expected = spellings(character), bool(in_python(f"^{pattern}$").search(character))
        assert conforming(made, [f'"{way}"' for way in ways]) == [expected] * len(ways)
        assert conforming(names, [f'{{"{way}": 1}}' for way in ways]) == [expected] * len(ways)


@pytest.mark.parametrize(
    ("pattern", "good", "wrong"),
    [
        (r"\p{L}", ["a", "é", r"\u0061"], ["0", '\\"', r"\u0022", r"\u00e9"]),
        (r"[^\p{L}]", ["0", '\\"', r"\u0022", r"\n", "\u2019"], ["a", "é", r"\u0061", r"\u2019"]),
        (r"[^\p{L}\"\x00-\x1f]", ["0", r"\\", r"\/"], ["a", '\\"', r"\u0022", r"\n"]),
        (r"[\p{Lu}0é]", ["É", "0", "é", "A", r"\u0041"], ["a", r"\\"]),
    ],
)
def test_unicode_properties_are_enforced(pattern, good, wrong):
    """Their characters beyond ASCII are written as they are."""
    made = grammar.json_schema({"type": "string", "pattern": f"^{pattern}$"})
    assert conforming(made, [f'"{text}"' for text in good]) == [True] * len(good)
    assert conforming(made, [f'"{text}"' for text in wrong]) == [False] * len(wrong)


def test_a_pattern_that_takes_too_much_to_compare_is_refused():
    """It would pass for one that matches no name."""
    schema = {"type": "object", "properties": {"a" * 3_000: {}}, "patternProperties": {"a.{2000}a": {}}}
    with pytest.raises(ConfigError, match=r"a pattern is too complex to be tested for matches .*; make it simpler"):
        grammar.json_schema(schema)


@pytest.mark.parametrize("pattern", [r"[^\D\d]", r"^[^\w\W]$"])
def test_a_class_without_characters_is_refused(pattern):
    with pytest.raises(ConfigError, match="matches no character"):
        grammar.json_schema({"type": "string", "pattern": pattern})


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
        with pytest.raises(ConfigError, match="is half a surrogate pair, which no text can contain"):
            make(pattern)
