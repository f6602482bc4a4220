"""JSON schemas: parts that xgrammar does not enforce are refused by name, and accepted schemas are enforced."""

import itertools
import json
import math
import re
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from drafttree.constraints import grammar, schema_comparison
from drafttree.constraints.json_schema import prepare_schema
from drafttree.errors import ConfigError

pytest.importorskip("xgrammar")
from xgrammar.testing import _is_grammar_accept_string

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def obj(**keywords) -> dict:
    return {"type": "object", **keywords}


def kind(name: str, **more) -> dict:
    return obj(properties={"kind": {"const": name}, **more}, required=["kind"], additionalProperties=False)


REFUSED = {
    "not": {"type": "integer", "not": {"const": 3}},
    "if": obj(properties={"a": WHOLE}, **{"if": {"required": ["a"]}, "then": False}),
    "uniqueItems": {"type": "array", "items": WHOLE, "uniqueItems": True},
    "contains": {"type": "array", "items": WHOLE, "contains": {"const": 5}, "minContains": 2},
    "dependentRequired": obj(properties={"a": WHOLE, "b": WHOLE}, dependentRequired={"a": ["b"]}),
    "dependentSchemas": obj(properties={"a": WHOLE}, dependentSchemas={"a": False}),
    "$dynamicRef": {"$dynamicRef": "#x"},
    "'$ref' to 'https://example.org/x.json'": {"$ref": "https://example.org/x.json"},
    "the part without a name of '$ref' to '#/x//y'": {"$ref": "#/x//y", "x": {"y": {"not": TEXT}}},
    "the part without a name of '$ref'": {"$ref": "#/x/", "x": {"not": TEXT}},
    "'$ref' to '#name'": {"$ref": "#name", "$defs": {"x": {"$anchor": "name", "type": "integer"}}},
    "'allOf' of several members": {"allOf": [WHOLE, {"type": "integer", "minimum": 4}]},
    "'minimum' beside 'allOf'": {"minimum": 4, "allOf": [{"type": "integer", "maximum": 9}]},
    "'minimum' beside 'anyOf'": {"minimum": 4, "anyOf": [WHOLE, {"type": "null"}]},
    "'properties' beside 'anyOf'": {"properties": {"a": WHOLE}, "anyOf": [{"required": ["a"]}]},
    "'minimum' beside '$ref'": {"$ref": "#/$defs/x", "minimum": 4, "$defs": {"x": WHOLE}},
    "'minLength' beside 'enum'": {"enum": ["a", "bb"], "minLength": 2},
    "'type' beside 'enum'": {"enum": ["a", 3], "type": "string"},
    "'type' beside 'const'": {"const": 3, "type": "string"},
    "'type' beside 'allOf'": {"type": "integer", "allOf": []},
    "'type' beside 'anyOf'": {"anyOf": [WHOLE, TEXT], "type": "string"},
    "'oneOf' of members": {"oneOf": [WHOLE, {"type": "number"}]},
    "'oneOf' of members that": {"oneOf": [WHOLE, {"const": 5}]},
    "'oneOf' of members that may": {"oneOf": [obj(properties={"a": WHOLE}), obj(properties={"b": WHOLE})]},
    "'minimum' without a type": {"minimum": 5},
    "'pattern' without a type": {"pattern": "^a$"},
    "'required' without a type": {"required": ["a"]},
    "'minLength' beside 'pattern'": {"type": "string", "pattern": "^a+$", "minLength": 2},
    "'maxLength' beside 'format'": {"type": "string", "format": "date", "maxLength": 3},
    "'pattern' beside 'format'": {"type": "string", "format": "date", "pattern": "^2"},
    "format 'regex'": {"type": "string", "format": "regex"},
    "looks ahead": {"type": "string", "pattern": "^(?=a)."},
    r"\b (the border of a word) in 'pattern'": {"type": "string", "pattern": r"a\b"},
    r"\Z (an end of the text: use ^ or $) in": {"type": "string", "pattern": r"a\Z"},
    "'$' at position 1 in 'pattern' 'a$b'": {"type": "string", "pattern": "a$b"},
    "'^' at position 1 in 'patternProperties'": obj(patternProperties={"a^": WHOLE}),
    "looks ahead or behind in 'patternProperties'": obj(patternProperties={"^(?!a)": WHOLE}),
    "'minProperties' 3, which one name several times would meet,": obj(
        properties={"a": WHOLE}, required=["a"], additionalProperties=WHOLE, minProperties=3
    ),
    "'minProperties' 2, which one name several times": obj(patternProperties={"^k": WHOLE}, minProperties=2),
    "'multipleOf' of other": {"type": "number", "multipleOf": 5},
    "'multipleOf' of other than": {"type": "integer", "multipleOf": 2.5},
    "'multipleOf' beside 'minimum'": {"type": "integer", "multipleOf": 5, "minimum": 7},
    "'multipleOf' 1025, which is more than 1024,": {"type": "integer", "multipleOf": 1025},
    "'maximum' of 10000000000000000000, which is beyond 64 bits,": {"type": "number", "maximum": 10**19},
    "'minimum' of -1e+19, which is beyond 64 bits,": {"type": "number", "minimum": -1e19},
    "'exclusiveMaximum' of 10000000... (31 digits)": {"type": "integer", "exclusiveMaximum": 10**30},
    "'maxProperties' of 4294967297, which is beyond 32 bits,": obj(additionalProperties=True, maxProperties=2**32 + 1),
    "'minProperties' of 2147483648, which is beyond 32 bits,": obj(additionalProperties=True, minProperties=2**31),
    "9223372036854775808 in 'const', which is beyond 64 bits,": {"const": 2**63},
    "-1000000... (31 digits) in 'enum', which is beyond 64 bits,": {"enum": [1, {"a": [-(10**30)]}]},
    "'required' of 'a', which is not": obj(properties={"b": WHOLE}, required=["a"], additionalProperties=False),
    "'required' of 'a'": obj(properties={"b": WHOLE}, required=["b", "a"]),
    "'patternProperties' of several": obj(patternProperties={"^a": WHOLE, "b$": TEXT}),
    "which 'aa' of 'properties' may match": obj(properties={"aa": TEXT}, patternProperties={"^a+$": {"const": "q"}}),
    "'propertyNames' beside 'properties'": obj(properties={"aa": TEXT}, propertyNames={"maxLength": 1}),
    "'propertyNames' beside 'patternProperties'": obj(patternProperties={"a": TEXT}, propertyNames={"maxLength": 1}),
}


@pytest.mark.parametrize("words", REFUSED)
def test_unenforced_parts_are_refused_by_name(words, capfd):
    with pytest.raises(ConfigError) as error:
        grammar.json_schema(REFUSED[words])
    assert words in str(error.value)
    assert str(error.value).endswith("is not enforced by xgrammar; leave it out")
    assert not capfd.readouterr().err


@pytest.mark.parametrize("number", [10**400, -(10**400), math.inf, math.nan], ids=["large", "small", "inf", "nan"])
@pytest.mark.parametrize(
    "keyword", ["maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxItems", "const", "default"]
)
def test_a_number_that_no_double_holds_is_refused_by_name(keyword, number):
    shown = {10**400: "10000000... (401 digits)", -(10**400): "-1000000... (401 digits)"}.get(number, str(number))
    schema = obj(properties={"a": {"type": "integer", keyword: number}})
    with pytest.raises(ConfigError, match=re.escape(f"{shown} is not a number that xgrammar can read; leave it out")):
        grammar.json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "maximum": 2**63 - 1}, 2**63 - 1, 2**63),
        ({"type": "integer", "minimum": -(2**63) + 1}, 1 - 2**63, -(2**63)),
        ({"type": "integer", "multipleOf": 1024}, 2048, 1025),
        ({"const": 2**63 - 1}, 2**63 - 1, 2**63 - 2),
        ({"type": "number", "maximum": 10**18}, 10**18, 10**18 + 1),
    ],
)
def test_numbers_of_64_bits_are_enforced_exactly(schema, good, bad):
    parsed = grammar.json_schema(schema).parsed
    assert _is_grammar_accept_string(parsed, str(good))
    assert not _is_grammar_accept_string(parsed, str(bad))


LINKS = {str(place): {"$ref": f"#/d/{place + 1}"} for place in range(19)}


@pytest.mark.parametrize(
    ("where", "schema"),
    [
        ("#/properties/a", obj(properties={"a": {"not": TEXT}})),
        ("#/items", {"type": "array", "items": {"not": TEXT}}),
        ("#/prefixItems/1", {"type": "array", "prefixItems": [WHOLE, {"not": TEXT}]}),
        ("#/anyOf/1", {"anyOf": [WHOLE, {"not": TEXT}]}),
        ("#/oneOf/0/properties/a", {"oneOf": [kind("a", a={"not": TEXT}), kind("b")]}),
        ("#/$defs/x", {"$ref": "#/$defs/x", "$defs": {"x": {"not": TEXT}}}),
        (
            "#/d/19",
            {"$ref": "#/d/0", "d": {**{str(n): {"$ref": f"#/d/{n + 1}"} for n in range(19)}, "19": {"not": TEXT}}},
        ),
        ("#/elsewhere/x", {"$ref": "#/elsewhere/x", "elsewhere": {"x": {"not": TEXT}}}),
        ("#/additionalProperties", obj(additionalProperties={"not": TEXT})),
        ("#/patternProperties/^a", obj(patternProperties={"^a": {"not": TEXT}})),
        ("#/propertyNames", obj(propertyNames={"not": TEXT})),
    ],
)
def test_unenforced_parts_are_found_in_nested_schemas(where, schema):
    with pytest.raises(ConfigError) as error:
        grammar.json_schema(schema)
    assert f"'not' at {where} is" in str(error.value)


LISTED = {"enum": ["a", 3], "type": ["string", "integer"]}
REFERRED = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": kind("a"), "b": kind("b", z=WHOLE)}}
NAMED_AS_KEYWORDS = obj(properties={"not": WHOLE, "if": WHOLE}, required=["not", "if"])
OWN = obj(properties={"a": WHOLE}, required=["a"], additionalProperties=False)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NAMED_AS_KEYWORDS, {"not": 1, "if": 2}, {"not": 1}),
        ({"enum": [{"not": 1}, "if"]}, "if", "not"),
        (LISTED, 3, 4),
        (REFERRED, {"kind": "b", "z": 1}, {"kind": "a", "z": 1}),
        ({"oneOf": [OWN, obj(properties={"b": TEXT}, required=["b"])]}, {"a": 1}, {"a": 1, "b": "x"}),
        ({"oneOf": [WHOLE, TEXT, {"type": "null"}]}, "x", 1.5),
        ({"allOf": [{"$ref": "#/$defs/x"}], "title": "X", "$defs": {"x": WHOLE}}, 4, "x"),
        ({"type": "object", "anyOf": [OWN, {"$ref": "#/$defs/x"}], "$defs": {"x": kind("x")}}, {"kind": "x"}, 3),
        ({"type": "array", "items": WHOLE, "uniqueItems": False, "minItems": 1}, [1, 1], []),
        (obj(propertyNames={"maxLength": 2}, additionalProperties=WHOLE), {"ab": 1}, {"abc": 1}),
        (obj(properties={"z": TEXT}, patternProperties={"^a+$": WHOLE}, minProperties=1), {"aa": 1}, {}),
        (obj(properties={"name": TEXT}, patternProperties={"^x-[0-9]$": WHOLE}), {"name": "a", "x-1": 2}, {"x-1": "a"}),
        (obj(properties={"child": {"$ref": "#"}}, additionalProperties=False), {"child": {}}, {"child": 1}),
        ({"type": "string", "format": "something", "maxLength": 2}, "ab", "abc"),
        ({"type": "string", "format": "something", "pattern": "^a+$"}, "aa", "b"),
        ({"type": ["integer", "null"], "multipleOf": 5}, 10, 11),
    ],
)
def test_accepted_schemas_are_enforced(schema, good, bad, capfd):
    parsed = grammar.json_schema(schema).parsed
    assert _is_grammar_accept_string(parsed, json.dumps(good))
    assert not _is_grammar_accept_string(parsed, json.dumps(bad))
    assert not capfd.readouterr().err


PARTS = [".", "[^x]", "[a-b]", r"\u0061", "(a|bb)", "(?:a{2})", r"(?<name>[\]a])", r"[\[a]", r"[^é\"\\\x00-\x1f]"]


@given(
    part=st.sampled_from(PARTS),
    least=st.integers(0, 300),
    more=st.none() | st.integers(0, 300),
    lazy=st.sampled_from(["", "?"]),
)
@settings(max_examples=12)
def test_patterns_match_as_many_repetitions_as_they_say(part, least, more, lazy):
    pattern = f"^{part}{{{least},{'' if more is None else least + more}}}{lazy}$"
    values = grammar.json_schema({"type": "string", "pattern": pattern}).parsed
    names = grammar.json_schema(obj(patternProperties={pattern: WHOLE}, minProperties=1)).parsed
    matched = re.compile(pattern.replace("?<", "?P<"))
    for character, length in itertools.product("ab]", {least - 1, least, 2 * least, least + (more or 0), 601}):
        text = character * length
        assert _is_grammar_accept_string(values, f'"{text}"') == bool(matched.fullmatch(text))
        assert _is_grammar_accept_string(names, f'{{"{text}": 1}}') == bool(matched.fullmatch(text))
    for escaped in '"\\\n':
        assert not _is_grammar_accept_string(values, f'"{escaped * max(least, 1)}"')


@pytest.mark.parametrize(
    "pattern",
    [
        "^a{4097}$",
        "((a{2}){2000}){200}",
        "a{999999999}",
        "(((){129,500}){129,500}){129,500}",
        "^a{0,4294967297}$",  # 1 in 32 bits
        "^a{4294967297}$",
        "^a{0,2000000000}$",
        "^a{00004294967297,}?$",
    ],
)
def test_patterns_that_are_too_large_are_refused(pattern):
    for schema in ({"type": "string", "pattern": pattern}, obj(patternProperties={pattern: WHOLE})):
        with pytest.raises(ConfigError, match=r"pattern '.*' repeats more than 4096 characters; lower its bounds"):
            grammar.json_schema(schema)


WORDS = "^(" + "|".join(f"city{number:04}" for number in range(510)) + ")$"


@pytest.mark.parametrize(
    "pattern", ["." * 5000, "^([a-f0-9]{100}){50}$", "^([a-z]{2,100} ){1,50}$", WORDS, "[[a]|[a||b]"]
)
def test_large_patterns_that_repeat_nothing_often_are_left_as_they_are(pattern, recwarn):
    assert prepare_schema({"type": "string", "pattern": pattern})["pattern"] == pattern
    assert not recwarn


@pytest.mark.parametrize("pattern", ["^a{" + "9" * 5000 + "}$", "^a{1," + "9" * 5000 + "}$", "^a*{130}$"])
def test_what_is_no_repetition_is_refused(pattern):
    with pytest.raises(ConfigError):
        grammar.json_schema({"type": "string", "pattern": pattern})


@pytest.mark.parametrize("pattern", ["[^é]", "(é|.)+", r"^\n$", r"^\\{2}\($", "[^é]{2000}", r"é[\s]", r"é\cA"])
def test_patterns_that_would_be_written_without_escapes_are_refused(pattern):
    for schema in (
        {"type": "string", "pattern": pattern},
        obj(patternProperties={pattern: WHOLE}),
        obj(propertyNames={"pattern": pattern}),
    ):
        with pytest.raises(ConfigError, match=r"xgrammar would not escape .* that pattern '.*' matches; exclude them"):
            grammar.json_schema(schema)


@pytest.mark.parametrize(
    ("pattern", "text"), [("^é+$", "éé"), (r"^[^é\"\\\x00-\x1f]+$", "aü"), ("^[é-ü]{1,300}$", "éü")]
)
def test_patterns_beyond_ascii_without_escapes_are_accepted(pattern, text):
    parsed = grammar.json_schema({"type": "string", "pattern": pattern}).parsed
    assert _is_grammar_accept_string(parsed, f'"{text}"')
    assert not _is_grammar_accept_string(parsed, f'"{text}"{text}"')


def test_names_and_a_pattern_on_which_a_search_never_ends_are_accepted():
    schema = obj(properties={"a" * 40 + "!": {}}, patternProperties={"^(a+)+$": WHOLE})
    parsed = grammar.json_schema(schema).parsed
    assert _is_grammar_accept_string(parsed, json.dumps({"a" * 40 + "!": "b", "aaa": 1}))
    assert not _is_grammar_accept_string(parsed, json.dumps({"aaa": "b"}))


def test_ordinary_pydantic_models_are_accepted():
    class Cat(BaseModel):
        kind: Literal["cat"]
        lives: int = Field(9, ge=0, le=9)

    class Dog(BaseModel):
        kind: Literal["dog"]
        names: list[str] = Field(min_length=1)
        owner: tuple[str, int] | None = None

    class Home(BaseModel):
        pet: Cat | Dog = Field(discriminator="kind", description="who lives there")
        ages: dict[str, float]

    parsed = grammar.json_schema(Home).parsed
    assert _is_grammar_accept_string(parsed, '{"pet": {"kind": "dog", "names": ["Rex"]}, "ages": {"Rex": 2.5}}')
    assert not _is_grammar_accept_string(parsed, '{"pet": {"kind": "dog", "lives": 9}, "ages": {}}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 3},
        {"$ref": 5},
        {"enum": 5},
        {"oneOf": 5},
        {"anyOf": {"a": 1}},
        {"type": "integer", "multipleOf": "x"},
        {"type": "object", "properties": [1]},
        {"type": "object", "required": 5},
        {"type": "object", "required": [{}]},
    ],
)
def test_a_schema_with_values_of_wrong_types_is_refused(schema):
    with pytest.raises(ConfigError, match="invalid JSON schema"):
        grammar.json_schema(schema)


def node(name: str) -> dict:
    return obj(
        properties={"left": {"$ref": f"#/$defs/{name}"}, "right": {"$ref": f"#/$defs/{name}"}},
        required=["left", "right"],
    )


def refers(*names: str) -> list[dict]:
    return [{"$ref": f"#/$defs/{name}"} for name in names]


TYPES = {
    "oneOf": [*refers("a"), TEXT],
    "$defs": {"a": {"anyOf": refers("a", "b") * 4}, "b": {"anyOf": refers("b", "a") * 4}},
}
PAIRS = {"oneOf": refers("a", "b"), "$defs": {"a": node("a"), "b": node("b")}}
MEMBERS = {"a": kind("a", left=refers("a")[0]), "b": kind("b", right={"oneOf": refers("a", "b")})}


@pytest.mark.parametrize("schema", [TYPES, PAIRS], ids=["types", "pairs"])
def test_members_that_refer_to_each_other_are_compared_once(schema, monkeypatch):
    monkeypatch.setattr(schema_comparison, "MAX_STEPS", 1000)  # along every path it would take 65536
    with pytest.raises(ConfigError, match="'oneOf' of members that may both hold"):
        prepare_schema(schema)


def test_members_that_refer_to_each_other_are_told_apart_by_their_constants():
    parsed = grammar.json_schema({"oneOf": refers("a", "b"), "$defs": MEMBERS}).parsed
    assert _is_grammar_accept_string(parsed, '{"kind": "b", "right": {"kind": "a"}}')
    assert not _is_grammar_accept_string(parsed, '{"kind": "b", "left": {"kind": "a"}}')


def test_too_many_members_to_compare_are_refused(monkeypatch):
    monkeypatch.setattr(schema_comparison, "MAX_STEPS", 30_000)
    several = [obj(properties={"k": {"const": number}}, required=["k"]) for number in range(400)]
    with pytest.raises(ConfigError, match=r"comparing the members .* takes more than 30000 steps; use fewer members"):
        prepare_schema({"oneOf": several})
    words = [[f"{letter}{number}" for number in range(900)] for letter in "ab"]
    assert prepare_schema({"oneOf": [{"enum": each} for each in words]})


@pytest.mark.parametrize("inner", [TEXT, {"enum": [[]]}])
def test_deep_schemas_are_refused(inner):
    schema = inner
    for _ in range(450):
        schema = {"anyOf": [schema, {"type": "null"}]}
    for form in (schema, json.dumps(schema)):
        with pytest.raises(ConfigError, match="nested more than 200 levels deep"):
            grammar.json_schema(form)
