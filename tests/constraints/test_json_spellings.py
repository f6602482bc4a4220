"""Every spelling that JSON allows can be written, and changes nothing of what a schema says; Python is the judge."""

import json

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.constraints import grammar
from testing.grammars import accepts, conforming, forced
from testing.json_spellings import CHARACTERS, TEXTS, spelled, spellings

pytest.importorskip("llguidance")

TEXT = {"type": "string"}
WITH_X = {"type": "object", "properties": {"x": TEXT}, "required": ["x"], "additionalProperties": False}
CALL = {"type": "tag", "begin": "<call>", "content": {"type": "json_schema", "json_schema": WITH_X}, "end": "</call>"}
CALLS = {"type": "triggered_tags", "triggers": ["<call>"], "tags": [CALL], "stop_after_first": True}
GRAMMARS = {
    "any object": (lambda: grammar.json_schema({"type": "object"}), "{}"),
    "a schema": (lambda: grammar.json_schema(WITH_X), "{}"),
    "any white space": (lambda: grammar.json_schema(WITH_X, any_whitespace=True), "{}"),
    "calls of tools": (lambda: grammar.structural_tag(CALLS), "so: <call>{}</call>"),
}
STRINGS = [
    *(r"it\u2019s", r"a \u2014 b", r"caf\u00e9", r"caf\u00E9", r"https:\/\/x.org", r"\ud83d\ude00", r"\uD83D\uDE00"),
    *(r"tab\u0009", r"del\u007f", "del\x7f", r"\u0061", r"\b\f\n\r\t\"\\", r"\u0022\u005c", "é\u2019😀"),
]
WRONG = [r"\ud83d", r"\ude00\ud83d", r"\ud83d\u0041", r"\u12", r"\x41", r"\'", "\n", "\x1f", '"']


@pytest.mark.parametrize("name", GRAMMARS)
def test_strings_may_be_spelled_in_every_way_of_json(name):
    make, around = GRAMMARS[name]
    texts = {string: around.format(f'{{"x": "{string}"}}') for string in [*STRINGS, *WRONG]}
    assert [json.loads(f'"{string}"') for string in STRINGS]
    written = dict(zip(texts, conforming(make(), texts.values()), strict=True))
    assert written == {**dict.fromkeys(STRINGS, True), **dict.fromkeys(WRONG, False)}


@pytest.mark.parametrize("character", CHARACTERS)
def test_a_character_counts_once_however_it_is_spelled(character):
    two = grammar.json_schema({**TEXT, "minLength": 2, "maxLength": 2})
    listed = grammar.json_schema({**TEXT, "pattern": f"^[{character if character != chr(92) else chr(92) * 2}]$"})
    for spelling in spellings(character):
        assert json.loads(f'"{spelling}"') == character
        texts = [f'"{spelling * length}"' for length in range(4)]
        assert conforming(two, texts) == [False, False, True, False]
        assert conforming(listed, texts) == [False, True, False, False]


FIXED = {"enum": ["it\u2019s", "a/b", "</x>", 'say "a"', "a\\b", "\x7f", "😀"]}


@pytest.mark.parametrize("value", FIXED["enum"])
def test_signs_and_characters_beyond_ascii_of_fixed_texts_may_be_spelled_in_every_way(value):
    constants, names = (
        grammar.json_schema(FIXED),
        grammar.json_schema({"properties": dict.fromkeys(FIXED["enum"], True)}),
    )
    plain = set(value) & set(map(chr, range(0x20, 0x7F))) - set("\"\\/<>&'+`")
    for index, character in enumerate(value):
        before, after = (json.dumps(text, ensure_ascii=False)[1:-1] for text in (value[:index], value[index + 1 :]))
        for spelling in spellings(character):
            fits = character not in plain or spelling == character
            text = f'"{before}{spelling}{after}"'
            assert json.loads(text) == value
            assert accepts(constants, text) == fits
            assert accepts(names, f"{{{text}: 1}}") == fits


def test_a_name_keeps_its_schema_however_it_is_spelled():
    made = grammar.json_schema({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": TEXT})
    good = ['{"a": null}', '{"b": "a"}', r'{"\u0062": "\u0061"}', r'{"a": null, "\u0061a": "x"}', "{}"]
    wrong = ['{"a": "x"}', r'{"\u0061": "x"}', r'{"b": "x", "\u0061": "x"}', r'{"\u0062": null}']
    assert conforming(made, good) == [True] * len(good)
    assert conforming(made, wrong) == [False] * len(wrong)


def test_what_is_fixed_is_forced():
    """So it is drafted without a drafter."""
    made = grammar.json_schema({"properties": {"file_path": {"const": "a-b c.d"}}, "required": ["file_path"]})
    assert forced(made) == b'{"file_path": "a-b c.d"}'


LENGTHS = st.fixed_dictionaries({}, optional={"minLength": st.integers(0, 2), "maxLength": st.integers(2, 5)})
PATTERNS = [
    '^[^"]*$',
    "^[^\\\\<]+$",
    "\u2019",
    "^[^0]{0,2}$",
    "^[a-b\\n]",
    "[/\\t]$",
    '^(é|😀|")+$',
    "[ \n\t]",
    "^[^a/]*$",
    "[^\\x00-\\x7f]",
]
STRING_SCHEMAS = st.tuples(LENGTHS, st.sampled_from([{}, *({"pattern": pattern} for pattern in PATTERNS)])).map(
    lambda keywords: {**TEXT, **keywords[0], **keywords[1]}
)


@st.composite
def documents(draw) -> tuple[dict, list[tuple[str, bool]]]:
    """A schema and texts of JSON, and whether each must be possible: fixed texts have one spelling of their letters."""
    texts = draw(st.lists(TEXTS, min_size=4, max_size=8))
    strings = [(draw(spelled(text)), text) for text in texts]
    strings += [(json.dumps(text, ensure_ascii=ascii_only), text) for text in texts for ascii_only in (False, True)]
    usual = {json.dumps(text, ensure_ascii=ascii_only) for text in texts for ascii_only in (False, True)}
    match draw(st.sampled_from(["strings", "constants", "names", "matched names"])):
        case "strings":
            return draw(STRING_SCHEMAS), [(string, True) for string, _ in strings]
        case "constants":
            schema = {"enum": draw(st.lists(st.sampled_from(texts), min_size=1, max_size=3))}
            return schema, [(string, string in usual) for string, _ in strings]
        case "names":
            named = draw(st.lists(st.sampled_from(texts), min_size=1, max_size=3))
            further = draw(st.sampled_from([False, {"type": "integer"}]))
            schema = {
                "type": "object",
                "properties": {name: {"type": "null"} for name in named},
                "additionalProperties": further,
            }
            pairs = [(string, text, value) for string, text in strings for value in ("null", "1")]
            return schema, [
                (f"{{{string}: {value}}}", string in usual or text not in named) for string, text, value in pairs
            ]
    schema = {"patternProperties": {draw(st.sampled_from(PATTERNS)): {"type": "null"}}, "type": "object"}
    schema["additionalProperties"] = draw(st.sampled_from([False, {"type": "integer"}]))
    return schema, [(f"{{{string}: {value}}}", True) for string, _ in strings for value in ("null", "1")]


def check_spellings(schema: dict, texts: list[tuple[str, bool]]) -> None:
    in_python = json.loads(json.dumps(schema).replace('$"', '\\\\Z"'))  # where $ may stand before a last line break
    judge = jsonschema.Draft202012Validator(in_python)
    valid = [judge.is_valid(json.loads(text)) for text, _ in texts]
    conform = conforming(grammar.json_schema(schema), [text for text, _ in texts])
    for (text, possible), is_valid, conforms in zip(texts, valid, conform, strict=True):
        assert conforms == is_valid or (is_valid and not possible), text


@given(documents())
@settings(max_examples=40)
def test_spellings_change_nothing_of_what_a_schema_says(document):
    check_spellings(*document)


@pytest.mark.slow
@given(documents())
@settings(max_examples=4_000)
def test_spellings_change_nothing_of_what_any_schema_says(document):
    """`test_spellings_change_nothing_of_what_a_schema_says` is the quick one."""
    check_spellings(*document)
