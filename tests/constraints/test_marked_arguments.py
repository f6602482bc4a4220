"""Arguments that stand between marks, strings without quotes and all else as JSON, conform to their schema."""

import pytest

from drafttree.constraints import grammar
from drafttree.errors import ConfigError
from testing.grammars import conforming

pytest.importorskip("llguidance")

STYLES = {
    "qwen_xml": "<parameter={}>\n{}\n</parameter>",
    "glm_xml": "<arg_key>{}</arg_key><arg_value>{}</arg_value>",
}
ONE_OF_TWO = [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]


def arguments(style: str, **schema) -> grammar.Grammar:
    return grammar.structural_tag({"type": "json_schema", "json_schema": {"type": "object", **schema}, "style": style})


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("schema", "good", "wrong"),
    [
        ({"type": "string"}, ["it\u2019s", 'say "a"', "a\\b", "", "a\nb"], []),
        ({"type": "string", "pattern": '^[^"\\\\]+$'}, ["ab", "it\u2019s"], ['a"b', "a\\b", ""]),
        ({"type": "string", "pattern": "a/b"}, ["xa/by"], ["ab"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "😀b\n"], ["a", "abcd"]),
        ({"allOf": [{"type": "string", "minLength": 2}, {"pattern": "^a"}]}, ["ab"], ["a", "ba"]),
        ({"type": "string", "format": "ipv6"}, ["::1"], ["1", "::g"]),
        ({"type": "string", "format": "date"}, ["2024-02-29"], ["2023-02-29"]),
        ({"enum": ["a", "bb", 3], "minLength": 2}, ["bb", "3"], ["a", '"bb"']),
        ({"const": {"k": "a/b"}}, ['{"k": "a/b"}', r'{"k": "a\/b"}'], ['{"k": "b"}', "a/b"]),
        ({"type": ["integer", "null"], "minimum": 1}, ["1", "null"], ["0", "a"]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, ["0.5"], ["0", "-0"]),
        ({"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^x$"}]}, ["true", "x"], ["y", "1"]),
        ({"type": "array", "items": {"type": "string"}}, [r'["it\u2019s", "a\/b"]'], ["[1]", "a"]),
        ({"$ref": "#/$defs/d", "$defs": {}}, ["7"], ["a"]),
    ],
)
def test_values_conform(style, schema, good, wrong):
    made = arguments(style, properties={"x": schema}, required=["x"], **{"$defs": {"d": {"type": "integer"}}})
    texts = [STYLES[style].format("x", value) for value in [*good, *wrong]]
    assert conforming(made, texts) == [True] * len(good) + [False] * len(wrong)


@pytest.mark.parametrize("style", STYLES)
def test_a_further_argument_has_another_name(style):
    made = arguments(style, properties={"x": {"type": "integer"}}, additionalProperties={"type": "string"})
    pairs = [("x", "1"), ("xy", "a"), ("x", "a")]
    assert conforming(made, [STYLES[style].format(*pair) for pair in pairs]) == [True, True, False]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("schema", [{"patternProperties": {"^a": {}}}, {"minProperties": 1}, {"anyOf": ONE_OF_TWO}])
def test_what_is_said_of_all_arguments_at_once_is_refused(style, schema):
    with pytest.raises(ConfigError, match="no keywords but 'properties', 'required' and 'additionalProperties'"):
        arguments(style, **schema)
