"""Refuses JSON schemas that xgrammar would not enforce in full, naming the part it would silently ignore.

xgrammar reads a schema as exactly one thing: a reference, a constant, a choice, or a type with that type's keywords. It
ignores keywords it does not know, keywords beside one that takes precedence, and keywords that need a type when none is
given.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from drafttree.core.errors import ConfigError

Schema = dict[str, Any]

UNSUPPORTED_KEYWORDS = (
    "not",
    "if",
    "contains",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "$dynamicRef",
    "$recursiveRef",
    "extends",
    "disallow",
)
CHOICE_KEYWORDS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Keywords that replace all others of a schema; xgrammar reads the first of them that is present."""

STRING_KEYWORDS = ("pattern", "format", "minLength", "maxLength")
RANGE_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OBJECT_KEYWORDS = ("properties", "additionalProperties", "unevaluatedProperties")
ARRAY_KEYWORDS = ("items", "prefixItems", "unevaluatedItems")
"""Keywords from which xgrammar infers the type `object` or `array`."""

TYPED_KEYWORDS = (*STRING_KEYWORDS, *RANGE_KEYWORDS, "multipleOf", "minItems", "maxItems", "required")
TYPED_KEYWORDS += ("patternProperties", "propertyNames", "minProperties", "maxProperties")
"""Keywords that xgrammar reads only beside an explicit or inferred type."""
KNOWN_KEYWORDS = {*CHOICE_KEYWORDS, *OBJECT_KEYWORDS, *ARRAY_KEYWORDS, *TYPED_KEYWORDS, "type"}
IGNORED_BESIDE = {
    "pattern": ("format",),
    "minLength": ("pattern", "format"),
    "maxLength": ("pattern", "format"),
    "multipleOf": RANGE_KEYWORDS,
    "propertyNames": ("properties", "patternProperties"),
}
"""Keywords that xgrammar ignores beside any of these others."""

ENFORCED_FORMATS = {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"}
ENFORCED_FORMATS |= {"uri-reference", "uri-template", "json-pointer", "relative-json-pointer"}
UNENFORCED_FORMATS = {"iri", "iri-reference", "idn-email", "idn-hostname", "regex"}
"""Formats of the specification that xgrammar enforces and does not enforce; any other is a mere annotation."""

MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE_SCHEMAS = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")

SPLIT_TYPES = {"number": {"integer", "fraction"}}
ALL_TYPES = {"null", "boolean", "integer", "fraction", "string", "array", "object"}
MAX_DEPTH = 16
"""Depth of references and properties followed when two schemas are compared."""


def prepare_schema(root: Any) -> Any:
    """Check that xgrammar enforces all of a schema, and replace `oneOf` of disjoint members by `anyOf`.

    xgrammar refuses some `oneOf` whose members it cannot tell apart; `anyOf` of disjoint members means the same.

    Args:
        root: the schema as `json.loads` returns it; it is changed in place and returned.

    Raises:
        ConfigError: xgrammar would ignore a part of the schema; the message names it and its location.
    """
    pending = [("#", root)]
    while pending:
        location, schema = pending.pop()
        if isinstance(schema, dict):
            if found := next(_ignored_parts(schema, root), None):
                part = f"{found} at {location}"
                raise ConfigError(f"invalid JSON schema: {part} is not enforced by xgrammar; leave it out")
            pending += [(f"{location}/{name}", below) for name, below in _subschemas(schema)]
            if isinstance(schema.get("oneOf"), list):
                schema["anyOf"] = schema.pop("oneOf")
    return root


def _subschemas(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside another, each with its location."""
    for keyword in SINGLE_SCHEMAS:
        if keyword in schema:
            yield keyword, schema[keyword]
    if isinstance(names := schema.get("propertyNames"), dict):
        yield "propertyNames", {"type": "string", **names}
    for keyword in MAPS_OF_SCHEMAS:
        if isinstance(inside := schema.get(keyword), dict):
            yield from ((f"{keyword}/{name}", each) for name, each in inside.items())
    for keyword in LISTS_OF_SCHEMAS:
        if isinstance(inside := schema.get(keyword), list):
            yield from ((f"{keyword}/{place}", each) for place, each in enumerate(inside))


def _ignored_parts(schema: Schema, root: Any) -> Iterator[str]:
    """Yield the parts of a schema that xgrammar would ignore, without looking into the schemas inside it."""
    yield from (repr(keyword) for keyword in UNSUPPORTED_KEYWORDS if keyword in schema)
    if schema.get("uniqueItems"):
        yield "'uniqueItems'"
    choice = next((keyword for keyword in CHOICE_KEYWORDS if keyword in schema), None)
    if choice:
        yield from _ignored_beside_choice(choice, schema, root)
        yield from _ignored_in_choice(choice, schema, root)
        return
    if not schema.keys() & {"type", *OBJECT_KEYWORDS, *ARRAY_KEYWORDS}:
        yield from (f"{keyword!r} without a type beside it" for keyword in TYPED_KEYWORDS if keyword in schema)
    read = schema.keys() - ({"format"} if str(schema.get("format")) not in ENFORCED_FORMATS else set())
    for keyword, others in IGNORED_BESIDE.items():
        yield from (f"{keyword!r} beside {other!r}" for other in others if {keyword, other} <= read)
    yield from _ignored_in_values(schema)
    yield from _ignored_in_properties(schema)


def _ignored_beside_choice(choice: str, schema: Schema, root: Any) -> Iterator[str]:
    """Yield keywords that xgrammar ignores beside a choice keyword, except a `type` that restricts nothing further."""
    for keyword in sorted(KNOWN_KEYWORDS & schema.keys() - {choice}):
        rest = {name: value for name, value in schema.items() if name != "type"}
        if keyword != "type" or not _possible_types(rest, root) <= _possible_types({"type": schema["type"]}, root):
            yield f"{keyword!r} beside {choice!r}"


def _ignored_in_choice(choice: str, schema: Schema, root: Any) -> Iterator[str]:
    value = schema[choice]
    if choice == "$ref" and isinstance(value, str) and value != "#" and not value.startswith("#/"):
        yield f"'$ref' to {value!r}, which is not of the form #/...,"
    if choice == "allOf" and isinstance(value, list) and len(value) > 1:
        yield "'allOf' of several members"
    pairs = itertools.combinations(value, 2) if choice == "oneOf" and isinstance(value, list) else ()
    if not all(_disjoint(first, second, root) for first, second in pairs):
        yield "'oneOf' of members that may both hold"


def _ignored_in_values(schema: Schema) -> Iterator[str]:
    """Yield the parts of string and number schemas that xgrammar ignores."""
    whole_multiple = "number" not in _as_list(schema.get("type")) and isinstance(schema.get("multipleOf"), int)
    if "multipleOf" in schema and not whole_multiple:
        yield "'multipleOf' of other than whole_multiple numbers"
    if str(schema.get("format")) in UNENFORCED_FORMATS:
        yield f"format {schema['format']!r}"
    if isinstance(pattern := schema.get("pattern"), str) and re.search(r"\(\?<?[=!]|\\[bB]", pattern):
        yield f"what looks ahead, behind or for the border of a word in 'pattern' {pattern!r}"


def _ignored_in_properties(schema: Schema) -> Iterator[str]:
    """Yield the constraints on property names that xgrammar ignores."""
    properties, patterns = (_dict_entry(schema, keyword) for keyword in ("properties", "patternProperties"))
    missing = [name for name in _required(schema) if name not in properties]
    yield from (f"'required' of {name!r}, which is not among 'properties'," for name in missing)
    if len(patterns) > 1:
        yield "'patternProperties' of several patterns, which may both match,"
    yield from (
        f"'patternProperties' {pattern!r}, which {name!r} of 'properties' matches,"
        for pattern, name in itertools.product(patterns, properties)
        if _matches(pattern, name)
    )


def _matches(pattern: str, name: str) -> bool:
    """Whether a pattern may match a name; a pattern that Python cannot parse may match any."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _dict_entry(schema: Schema, keyword: str) -> Schema:
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}


def _required(schema: Schema) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _as_list(types: Any) -> list:
    return types if isinstance(types, list) else [types]


def _follow_refs(schema: Any, root: Any) -> Any:
    """Follow references; one that leads nowhere or in a circle resolves to a schema without constraints."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        name, schema = schema["$ref"], root
        for part in name.split("/")[1:]:
            schema = schema.get(part) if isinstance(schema, dict) else None
    return {}


def _possible_types(schema: Any, root: Any, depth: int = MAX_DEPTH) -> set[str]:
    """Types of the values a schema may allow; numbers are split into integers and fractions."""
    schema = _follow_refs(schema, root)
    if not isinstance(schema, dict) or not depth:
        return ALL_TYPES
    if (values := _values(schema)) is not None:
        return set().union(*map(_types_of_value, values))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            return set().union(*(_possible_types(each, root, depth - 1) for each in schema[keyword]))
    if "type" in schema:
        names = [name for name in _as_list(schema["type"]) if isinstance(name, str)]
        return set().union(*(SPLIT_TYPES.get(name, {name}) for name in names))
    implied = {"object": OBJECT_KEYWORDS, "array": ARRAY_KEYWORDS}
    return {name for name, keywords in implied.items() if schema.keys() & set(keywords)} or ALL_TYPES


def _types_of_value(value: Any) -> set[str]:
    names = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
    if isinstance(value, float) and value % 1:
        return {"fraction"}
    return {names.get(type(value), "integer")}


def _values(schema: Schema) -> list | None:
    """The values of `const` or `enum`, None if the schema has neither."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _disjoint(first: Any, second: Any, root: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether types, constants or object properties prove that no value conforms to both schemas."""
    kinds = _possible_types(first, root) & _possible_types(second, root)
    if not kinds:
        return True
    first, second = _follow_refs(first, root), _follow_refs(second, root)
    if not isinstance(first, dict) or not isinstance(second, dict) or not depth:
        return False
    listed = _values(first), _values(second)
    if listed[0] is not None and listed[1] is not None:
        return not any(value in listed[1] for value in listed[0])
    return kinds == {"object"} and _objects_disjoint(first, second, root, depth)


def _objects_disjoint(first: Schema, second: Schema, root: Any, depth: int) -> bool:
    """Whether a property required by both is disjoint, or one object requires a property the other forbids."""
    if _requires_forbidden(first, second) or _requires_forbidden(second, first):
        return True
    one, other = _dict_entry(first, "properties"), _dict_entry(second, "properties")
    shared = {*_required(first)} & {*_required(second)} & one.keys() & other.keys()
    return any(_disjoint(one[name], other[name], root, depth - 1) for name in shared)


def _requires_forbidden(first: Schema, second: Schema) -> bool:
    """Whether one object schema requires a property that another, which names all of its own, does not have."""
    closed = second.get("additionalProperties") is False and "patternProperties" not in second
    return closed and bool(set(_required(first)) - _dict_entry(second, "properties").keys())
