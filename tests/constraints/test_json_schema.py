"""JSON schemas: what cannot be enforced is refused by name, and the rest is enforced; jsonschema is the judge."""

import itertools
import json
import math
import random
import re
from typing import Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from drafttree.constraints import grammar, schema_comparison
from drafttree.constraints.json_schema import prepare_schema
from drafttree.errors import ConfigError
from testing.grammars import accepts, conforming, written

pytest.importorskip("llguidance")

TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def obj(**keywords) -> dict:
    return {"type": "object", **keywords}


def kind(name: str, **more) -> dict:
    return obj(properties={"kind": {"const": name}, **more}, required=["kind"], additionalProperties=False)


REFUSED = {
    "'not' at #": {"type": "integer", "not": {"const": 3}},
    "'if' at #": obj(properties={"a": WHOLE}, **{"if": {"required": ["a"]}, "then": False}),
    "'uniqueItems' at #": {"type": "array", "items": WHOLE, "uniqueItems": True},
    "'contains' at #": {"type": "array", "items": WHOLE, "contains": {"const": 5}, "minContains": 2},
    "'dependentRequired' at #": obj(properties={"a": WHOLE, "b": WHOLE}, dependentRequired={"a": ["b"]}),
    "'dependentSchemas' at #": obj(properties={"a": WHOLE}, dependentSchemas={"a": False}),
    "'$dynamicRef' at #": {"$dynamicRef": "#x"},
    "the '$ref' 'https://example.org/x.json' (only local references": {"$ref": "https://example.org/x.json"},
    "the '$ref' '#name' (only": {"$ref": "#name", "$defs": {"x": {"$anchor": "name", "type": "integer"}}},
    "'$id' 'x.json' inside at #/$defs/x": {"$ref": "#/$defs/x", "$defs": {"x": {"$id": "x.json"}}},
    "'oneOf' of members that may both hold at #": {"oneOf": [WHOLE, {"type": "number"}]},
    "'oneOf' of members that may": {"oneOf": [WHOLE, {"const": 5}]},
    "'oneOf' of members": {"oneOf": [obj(properties={"a": WHOLE}), obj(properties={"b": WHOLE})]},
    "'oneOf' of": {"oneOf": [{"properties": {"a": WHOLE}, "required": ["a"]}, TEXT]},
    "format 'regex' at #": {"type": "string", "format": "regex"},
    "'minProperties' 3, which one name several times would meet,": obj(
        properties={"a": WHOLE}, required=["a"], additionalProperties=WHOLE, minProperties=3
    ),
    "'minProperties' 2, which one name several times": obj(patternProperties={"^k": WHOLE}, minProperties=2),
    "'minProperties' 2, which one name": {"allOf": [obj(minProperties=2), obj(required=["a"])]},
    "'maximum' of 10000000000000000000, which is beyond 64 bits,": {"type": "number", "maximum": 10**19},
    "'minimum' of -1e+19, which is beyond 64 bits,": {"type": "number", "minimum": -1e19},
    "'minimum' of 1e-300, which has more than 60 decimals,": {"type": "number", "minimum": 1e-300},
    "'exclusiveMaximum' of 10000000... (31 digits)": {"type": "integer", "exclusiveMaximum": 10**30},
    "9223372036854775808 in 'const', which is beyond 64 bits,": {"const": 2**63},
    "-1000000... (31 digits) in 'enum', which is beyond 64 bits,": {"enum": [1, {"a": [-(10**30)]}]},
    "'multipleOf' 100000, which is more than 65536,": {"type": "integer", "multipleOf": 100_000},
    "'multipleOf' 6557 beside another schema": {
        "allOf": [{"type": "integer", "multipleOf": 6553}, {"multipleOf": 6557}]
    },
    "'propertyNames' beside 'properties'": obj(properties={"aa": TEXT}, propertyNames={"maxLength": 1}),
    "'propertyNames' beside 'patternProperties'": obj(patternProperties={"a": TEXT}, propertyNames={"maxLength": 1}),
    "'propertyNames' other than a pattern": obj(propertyNames={"format": "date"}),
    "'unevaluatedProperties' beside another schema": obj(
        unevaluatedProperties=False, allOf=[obj(properties={"a": WHOLE})]
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_parts_that_cannot_be_enforced_are_refused_by_name(words, capfd):
    with pytest.raises(ConfigError) as error:
        grammar.json_schema(REFUSED[words])
    assert words in str(error.value)
    assert str(error.value).endswith("cannot be enforced; leave it out")
    assert not capfd.readouterr().err


OLD = {
    "required": True,
    "divisibleBy": 2,
    "disallow": "null",
    "extends": {"type": "string"},
    "dependencies": {"a": "b"},
    "minimumCanEqual": False,
    "maximumCanEqual": False,
}


@pytest.mark.parametrize("keyword", OLD)
@pytest.mark.parametrize("type_name", ["string", "number", "integer", "boolean", "null", "array", "object"])
def test_keywords_of_old_drafts_are_refused_whatever_the_type(keyword, type_name):
    for location, schema in (
        ("#", {"type": type_name, keyword: OLD[keyword]}),
        ("#/properties/x", obj(properties={"x": {"type": type_name, keyword: OLD[keyword]}})),
    ):
        with pytest.raises(ConfigError, match=rf"'{keyword}'.* at {location} cannot be enforced; leave it out"):
            grammar.json_schema(schema)


@pytest.mark.parametrize("type_name", ["string", "number", "array", "object"])
def test_that_a_property_need_not_be_there_may_be_said_as_in_draft_3(type_name):
    assert accepts(grammar.json_schema(obj(properties={"x": {"type": type_name, "required": False}})), "{}")


REFUSED_BY_LIBRARY = {
    "Pointer '/x//y' does not exist": {"$ref": "#/x//y", "x": {"y": {"not": TEXT}}},
    "incompatible types at #": {"const": 3, "type": "string"},
    "WordUnicode in regex": {"type": "string", "pattern": r"a\b"},
    "unrecognized escape": {"type": "string", "pattern": r"a\Z"},
    "End in regex": {"type": "string", "pattern": "a$b"},
    "Start in regex": obj(patternProperties={"a^": WHOLE}),
    "'(?!a)' at position 1 looks ahead": obj(patternProperties={"^(?!a)": WHOLE}),
    "'(?=a)' at position 1 looks ahead": {"type": "string", "pattern": "^(?=a)."},
    "'(?i)' at position 0": {"type": "string", "pattern": "(?i)a"},
    "regexes /^a/ and /b$/ are not disjoint": obj(patternProperties={"^a": WHOLE, "b$": TEXT}),
    "required property 'a' is unsatisfiable": obj(properties={"b": WHOLE}, required=["a"], additionalProperties=False),
    "too many digits": {"type": "number", "multipleOf": 0.07},
    "min/maxProperties only supported when": obj(
        properties={"a": {}, "b": {}}, maxProperties=1, minProperties=0, additionalProperties=True
    ),
    "at #/properties/x/anyOf/1": obj(
        properties={"x": {"anyOf": [TEXT, {"type": "integer", "minimum": 3, "maximum": "a"}]}}
    ),
}


@pytest.mark.parametrize("words", REFUSED_BY_LIBRARY)
def test_what_llguidance_refuses_is_told_with_its_place(words, capfd):
    with pytest.raises(ConfigError, match=r"^invalid JSON schema: ") as error:
        grammar.json_schema(REFUSED_BY_LIBRARY[words])
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("number", [10**400, -(10**400), math.inf, math.nan], ids=["large", "small", "inf", "nan"])
@pytest.mark.parametrize(
    "keyword", ["maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxItems", "const", "default"]
)
def test_a_number_that_no_double_holds_is_refused_by_name(keyword, number):
    shown = {10**400: "10000000... (401 digits)", -(10**400): "-1000000... (401 digits)"}.get(number, str(number))
    schema = obj(properties={"a": {"type": "integer", keyword: number}})
    with pytest.raises(ConfigError, match=re.escape(f"{shown} is not a number that can be read; leave it out")):
        grammar.json_schema(schema)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "integer", "maximum": 2**63 - 1}, 2**63 - 1, 2**63),
        ({"type": "integer", "minimum": -(2**63)}, 4096 - 2**63, -(2**63) - 1),
        ({"type": "integer", "maximum": 2**53 + 3}, 2**53 + 2, 2**53 + 4),
        ({"type": "integer", "exclusiveMaximum": 2**60 + 1}, 2**60 - 512, 2**60 + 1),
        ({"type": "integer", "multipleOf": 1024}, 2048, 1025),
        ({"type": "integer", "multipleOf": 2.5}, 5, 3),
        ({"type": "number", "multipleOf": 0.01}, 0.07, 0.075),
        ({"const": 2**63 - 1}, 2**63 - 1, 2**63 - 2),
        ({"type": "number", "maximum": 10**18}, 10**18, 10**18 + 1),
        ({"type": "array", "maxItems": 2.0}, [1, 2], [1, 2, 3]),
    ],
)
def test_numbers_are_enforced(schema, good, bad):
    """Bounds that no double holds are rounded to one that keeps them."""
    made = grammar.json_schema(schema)
    assert accepts(made, str(good))
    assert not accepts(made, str(bad))


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
    ],
)
def test_parts_that_cannot_be_enforced_are_found_in_nested_schemas(where, schema):
    with pytest.raises(ConfigError) as error:
        grammar.json_schema(schema)
    assert f"'not' at {where} cannot" in str(error.value)


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
        (obj(properties={"z": TEXT, "y": TEXT}, minProperties=1), {"z": "a"}, {}),
        (obj(properties={"z": TEXT, "y": TEXT}, maxProperties=1), {"y": "a"}, {"z": "a", "y": "a"}),
        (obj(properties={"name": TEXT}, patternProperties={"^x-[0-9]$": WHOLE}), {"name": "a", "x-1": 2}, {"x-1": "a"}),
        (obj(properties={"child": {"$ref": "#"}}, additionalProperties=False), {"child": {}}, {"child": 1}),
        ({"type": "string", "format": "something", "maxLength": 2}, "ab", "abc"),
        ({"type": "string", "format": "something", "pattern": "^a+$"}, "aa", "b"),
        ({"type": ["integer", "null"], "multipleOf": 5}, 10, 11),
        ({"allOf": [WHOLE, {"minimum": 4}]}, 4, 3),
        ({"minimum": 4, "anyOf": [WHOLE, {"type": "null"}]}, 4, 3),
        ({"properties": {"a": WHOLE}, "anyOf": [{"required": ["a"]}, {"type": "null"}]}, {"a": 1}, {"b": 1}),
        ({"$ref": "#/$defs/x", "minimum": 4, "$defs": {"x": WHOLE}}, 4, 3),
        ({"enum": ["a", "bb"], "minLength": 2}, "bb", "a"),
        ({"minimum": 5}, 5, 4),
        ({"pattern": "^a$"}, "a", "b"),
        ({"type": "string", "pattern": "^a+$", "minLength": 2}, "aa", "a"),
        ({"type": "string", "format": "date", "pattern": "^2"}, "2024-02-29", "1924-02-29"),
        ({"type": "string", "format": "date"}, "2000-02-29", "2100-02-29"),
        ({"type": "string", "format": "json-pointer"}, "/a~1/0", "a"),
        ({"type": "string", "format": "uri-reference"}, "../a?b#c", "a b"),
        ({"type": "integer", "multipleOf": 5, "minimum": 7}, 10, 5),
        (obj(properties={"b": WHOLE}, required=["b", "a"]), {"b": 1, "a": 2}, {"b": 1}),
        (obj(properties={"aa": TEXT}, patternProperties={"^a+$": {"const": "q"}}), {"aa": "q"}, {"aa": "x"}),
        (obj(properties={"a": WHOLE}, additionalProperties=TEXT), {"a": 1, "b": "x"}, {"a": "x"}),
        (obj(properties={"a": WHOLE}, unevaluatedProperties=False), {"a": 1}, {"b": 1}),
        (obj(propertyNames={"enum": ["a b", "c+"]}), {"a b": 1, "c+": 2}, {"c": 1}),
        ({"anyOf": [TEXT, WHOLE], "oneOf": [WHOLE, {"type": "null"}]}, 1, "x"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "not-a-keyword": 3, "type": "integer"}, 1, "x"),
        ({"x-guidance": {"lenient": True}, "type": "integer"}, 1, "x"),
        ({"type": "array", "prefixItems": [WHOLE]}, [1], [1, 2]),
        ({"$ref": "#/a~1b/0", "a/b": [WHOLE]}, 1, "x"),
        (
            {
                "allOf": [{"$ref": "#/$defs/a"}, obj(properties={"b": WHOLE})],
                "$defs": {"a": obj(properties={"a": TEXT})},
            },
            {"a": "x", "b": 1},
            {"a": 1, "b": 1},
        ),
    ],
)
def test_accepted_schemas_are_enforced(schema, good, bad, capfd):
    made = grammar.json_schema(schema)
    jsonschema.validate(good, schema)
    assert accepts(made, json.dumps(good))
    assert not accepts(made, json.dumps(bad))
    assert not capfd.readouterr().err


LEAVES = [
    (TEXT, "it\u2019s"),
    ({"type": "string", "pattern": "^[a-c]+$"}, "abc"),
    ({"enum": ["a", "b", 3, None]}, 3),
    ({"const": {"a": [1, "b"]}}, {"a": [1, "b"]}),
    (WHOLE, 12),
    ({"type": "number", "exclusiveMinimum": 0}, 0.5),
    ({"type": "integer", "multipleOf": 3}, 12),
    ({"type": ["boolean", "null"]}, True),
    (obj(), {"a": 1, "b": [None, {"c": "x"}]}),
    ({}, [1, "a", {}]),
]


@st.composite
def schemas_with_values(draw, depth: int = 2) -> tuple[dict, object]:
    """A schema, and a value that conforms to it, whose properties come in its order."""
    shape = draw(st.sampled_from(["leaf", "object", "array", "any of"])) if depth else "leaf"
    if shape == "leaf":
        return draw(st.sampled_from(LEAVES))
    below = schemas_with_values(depth=depth - 1)
    if shape == "object":
        properties = draw(st.dictionaries(st.sampled_from("abcd"), below, max_size=3))
        required = draw(st.lists(st.sampled_from([*properties]), unique=True)) if properties else []
        there = {name for name in properties if name in required or draw(st.booleans())}
        further, value = draw(st.sampled_from([(False, None), *LEAVES]))
        schemas = {name: schema for name, (schema, _) in properties.items()}
        values = {name: value for name, (_, value) in properties.items() if name in there}
        values |= {"e": value} if further is not False and draw(st.booleans()) else {}
        return obj(properties=schemas, required=required, additionalProperties=further), values
    members = draw(st.lists(below, min_size=1, max_size=3))
    if shape == "any of":
        return {"anyOf": [schema for schema, _ in members]}, draw(st.sampled_from(members))[1]
    least, first = draw(st.integers(0, len(members))), [schema for schema, _ in members]
    values = [value for _, value in members[: draw(st.integers(least, len(members)))]]
    return {"type": "array", "prefixItems": first, "items": draw(st.booleans()), "minItems": least}, values


@given(st.lists(schemas_with_values(), min_size=2, max_size=5))
@settings(max_examples=25)
def test_values_of_a_schema_are_written_and_no_others(cases):
    texts = [json.dumps(value, ensure_ascii=False) for _, value in cases] + [json.dumps(value) for _, value in cases]
    for schema, value in cases:
        conform = dict(zip(texts, conforming(grammar.json_schema(schema), texts), strict=True))
        judge = jsonschema.Draft202012Validator(schema)
        assert conform[json.dumps(value)]
        assert conform[json.dumps(value, ensure_ascii=False)]
        assert all(judge.is_valid(json.loads(text)) for text, conforms in conform.items() if conforms)


def test_members_that_begin_alike_are_followed_side_by_side():
    made = grammar.json_schema({"anyOf": [obj(), obj(properties={"a": {"enum": [1, 2]}}, required=["a"])]})
    assert conforming(made, ['{"a": 1}', '{"a": "x"}', '{"a": 1, "b": 3}', '{"ab": 1}']) == [True] * 4


WALKED = {
    "numbers": {"type": "number", "minimum": -3.5, "exclusiveMaximum": 12},
    "integers": {"anyOf": [{"type": "integer", "minimum": -20, "maximum": 105}, {"type": "integer", "multipleOf": 7}]},
    "texts": {"type": "string", "minLength": 2, "maxLength": 5},
    "patterns": {"type": "string", "pattern": "^(a|[^b-y]{2})+$", "maxLength": 8},
    "formats": {"enum": [], "type": "string"} | {"enum": ["x"]},
    "dates": {"type": "string", "format": "date-time"},
    "mails": {"type": "string", "format": "email", "maxLength": 20},
    "arrays": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "minItems": 1},
    "objects": obj(properties={"a": WHOLE, "b": TEXT, "c": {"type": "null"}}, required=["b"]),
    "maps": obj(patternProperties={"^x-[a-c]+$": WHOLE, "^y": {"enum": [1, "1", None]}}, minProperties=1),
    "open": obj(properties={"a": WHOLE}, additionalProperties={"type": "boolean"}, required=["a"]),
    "joined": {
        "allOf": [{"$ref": "#/$defs/a"}, {"anyOf": [{"required": ["x"]}, {"required": ["y"]}]}],
        "$defs": {"a": obj(properties={"x": WHOLE, "y": {"type": "null"}}, additionalProperties=False)},
    },
    "trees": {
        "$ref": "#/$defs/n",
        "$defs": {"n": obj(properties={"l": {"$ref": "#/$defs/n"}, "v": WHOLE}, required=["v"])},
    },
    "kinds": {"oneOf": [kind("a", n=WHOLE), kind("b", n=TEXT)]},
    "names": obj(propertyNames={"minLength": 1, "maxLength": 3}, additionalProperties=WHOLE),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", WALKED)
def test_whatever_is_written_conforms(name):
    """Texts are drawn byte by byte from those that the grammar allows."""
    made, schema = grammar.json_schema(WALKED[name]), WALKED[name]
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    draw = random.Random(name)
    for _ in range(100):
        text = written(made, draw)
        judge.validate(json.loads(text))


PARTS = [".", "[^x]", "[a-b]", r"\u0061", "(a|bb)", "(?:a{2})", r"(?<name>[\]a])", r"[\[a]", r"[^é\"\\\x00-\x1f]"]


@given(
    part=st.sampled_from(PARTS),
    least=st.integers(0, 300),
    more=st.none() | st.integers(0, 300),
    lazy=st.sampled_from(["", "?"]),
)
@settings(max_examples=12, deadline=None)
def test_patterns_match_as_many_repetitions_as_they_say(part, least, more, lazy):
    pattern = f"^{part}{{{least},{'' if more is None else least + more}}}{lazy}$"
    values = grammar.json_schema({"type": "string", "pattern": pattern})
    names = grammar.json_schema(obj(patternProperties={pattern: WHOLE}, minProperties=1))
    matched = re.compile(pattern.replace("?<", "?P<"))
    for character, length in itertools.product("ab]", {least - 1, least, 2 * least, least + (more or 0), 601}):
        text = character * length
        assert accepts(values, f'"{text}"') == bool(matched.fullmatch(text))
        assert accepts(names, f'{{"{text}": 1}}') == bool(matched.fullmatch(text))
    for escaped in '"\\\n':
        assert not accepts(values, f'"{escaped * max(least, 1)}"')


@pytest.mark.parametrize("bound", ["4294967297", "0,4294967297", "00004294967297,", "9" * 5000, "1," + "9" * 5000])
def test_bounds_beyond_32_bits_are_refused(bound):
    pattern = f"^a{{{bound}}}$"
    for schema in ({"type": "string", "pattern": pattern}, obj(patternProperties={pattern: WHOLE})):
        with pytest.raises(ConfigError, match=r"'{.*' repeats more than 2147483647 times; lower its bounds"):
            grammar.json_schema(schema)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^é+$", "éé", "e"),
        ("[^é]", '"', "é"),
        (r"^\n$", "\n", "n"),
        (r"^\\{2}\($", "\\\\(", "("),
        (r"é[\s]", "é\t", "é"),
        ("^a{4097}$", "a" * 4097, "a" * 4096),
        ("^a{0,1000000}$", "a" * 9, "b"),
        (r"^\ud83d\ude00$", "😀", "😁"),
        ("^.$", "a", "\r"),
    ],
)
def test_texts_of_patterns_are_written_as_json(pattern, good, bad):
    values = grammar.json_schema({"type": "string", "pattern": pattern})
    assert accepts(values, json.dumps(good, ensure_ascii=False))
    assert not accepts(values, json.dumps(bad, ensure_ascii=False))
    assert not accepts(values, f'"{good}"{good}"')


def test_names_and_a_pattern_on_which_a_search_never_ends_are_accepted():
    schema = obj(properties={"a" * 40 + "!": {}}, patternProperties={"^(a+)+$": WHOLE})
    made = grammar.json_schema(schema)
    assert accepts(made, json.dumps({"a" * 40 + "!": "b", "aaa": 1}))
    assert not accepts(made, json.dumps({"aaa": "b"}))


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

    made = grammar.json_schema(Home)
    assert accepts(made, '{"pet": {"kind": "dog", "names": ["Rex"]}, "ages": {"Rex": 2.5}}')
    assert not accepts(made, '{"pet": {"kind": "dog", "lives": 9}, "ages": {}}')


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
    made = grammar.json_schema({"oneOf": refers("a", "b"), "$defs": MEMBERS})
    assert accepts(made, '{"kind": "b", "right": {"kind": "a"}}')
    assert not accepts(made, '{"kind": "b", "left": {"kind": "a"}}')


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
        with pytest.raises(ConfigError, match="nested more than 100 levels deep"):
            grammar.json_schema(form)
