"""JSON schemas as xgrammar keeps to them: what it would silently leave out is found and refused by name.

xgrammar reads a schema as one thing: a reference, a constant, a choice or a type with the keywords of that type. It
passes over keywords it does not know, over those beside another that it reads instead, and over those that need a type
which is not there.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from drafttree.core.errors import ConfigError

Schema = dict[str, Any]

UNKNOWN = (
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
CHOICES = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""What a schema is read as, the first that is there."""

STRING = ("pattern", "format", "minLength", "maxLength")
RANGE = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OBJECT = ("properties", "additionalProperties", "unevaluatedProperties")
ARRAY = ("items", "prefixItems", "unevaluatedItems")
"""Of an object and of an array those from which xgrammar tells the type."""

TYPED = (*STRING, *RANGE, "multipleOf", "minItems", "maxItems", "required", "patternProperties")
TYPED += ("propertyNames", "minProperties", "maxProperties")
KNOWN = {*CHOICES, *OBJECT, *ARRAY, *TYPED, "type"}
OUTDONE = {
    "pattern": ("format",),
    "minLength": ("pattern", "format"),
    "maxLength": ("pattern", "format"),
    "multipleOf": RANGE,
    "propertyNames": ("properties", "patternProperties"),
}
"""Keywords that are passed over beside others."""

FORMATS = {"email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri", "uri-reference"}
FORMATS |= {"uri-template", "json-pointer", "relative-json-pointer"}
STRANGE = {"iri", "iri-reference", "idn-email", "idn-hostname", "regex"}
"""Formats of the specification that xgrammar knows, and does not know; any other is a remark."""

MAPS, LISTS = ("properties", "patternProperties", "$defs", "definitions"), ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")

KINDS = {"number": {"integer", "fraction"}}
ALL = {"null", "boolean", "integer", "fraction", "string", "array", "object"}
DEEP = 16
"""References and properties followed to tell two schemas apart."""


def enforced(root: Any) -> Any:
    """A schema as xgrammar keeps to it: `oneOf` of members that exclude each other, which it cannot always tell, is
    `anyOf`.

    Args:
        root: the schema, of what `json.loads` makes; it is changed in place.

    Raises:
        ConfigError: names the part that xgrammar would not enforce, and where it is.
    """
    waiting = [("#", root)]
    while waiting:
        where, schema = waiting.pop()
        if isinstance(schema, dict):
            if found := next(_passed_over(schema, root), None):
                raise ConfigError(f"invalid JSON schema: {found} at {where} is not enforced by xgrammar; leave it out")
            waiting += [(f"{where}/{name}", below) for name, below in _below(schema)]
            if isinstance(schema.get("oneOf"), list):
                schema["anyOf"] = schema.pop("oneOf")
    return root


def _below(schema: Schema) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside another, each with its place."""
    for keyword in SINGLE:
        if keyword in schema:
            yield keyword, schema[keyword]
    if isinstance(names := schema.get("propertyNames"), dict):
        yield "propertyNames", {"type": "string", **names}
    for keyword in MAPS:
        if isinstance(inside := schema.get(keyword), dict):
            yield from ((f"{keyword}/{name}", each) for name, each in inside.items())
    for keyword in LISTS:
        if isinstance(inside := schema.get(keyword), list):
            yield from ((f"{keyword}/{place}", each) for place, each in enumerate(inside))


def _passed_over(schema: Schema, root: Any) -> Iterator[str]:
    """What xgrammar would pass over in a schema itself."""
    yield from (repr(keyword) for keyword in UNKNOWN if keyword in schema)
    if schema.get("uniqueItems"):
        yield "'uniqueItems'"
    choice = next((keyword for keyword in CHOICES if keyword in schema), None)
    if choice:
        yield from _beside(choice, schema, root)
        yield from _of_choice(choice, schema, root)
        return
    if not schema.keys() & {"type", *OBJECT, *ARRAY}:
        yield from (f"{keyword!r} without a type beside it" for keyword in TYPED if keyword in schema)
    read = schema.keys() - ({"format"} if str(schema.get("format")) not in FORMATS else set())
    for keyword, others in OUTDONE.items():
        yield from (f"{keyword!r} beside {other!r}" for other in others if {keyword, other} <= read)
    yield from _of_types(schema)
    yield from _of_objects(schema)


def _beside(choice: str, schema: Schema, root: Any) -> Iterator[str]:
    """Keywords that xgrammar does not read since the schema is a choice; a type that says nothing new is none."""
    for keyword in sorted(KNOWN & schema.keys() - {choice}):
        said = {name: value for name, value in schema.items() if name != "type"}
        if keyword != "type" or not _kinds(said, root) <= _kinds({"type": schema["type"]}, root):
            yield f"{keyword!r} beside {choice!r}"


def _of_choice(choice: str, schema: Schema, root: Any) -> Iterator[str]:
    value = schema[choice]
    if choice == "$ref" and isinstance(value, str) and value != "#" and not value.startswith("#/"):
        yield f"'$ref' to {value!r}, which is not of the form #/...,"
    if choice == "allOf" and isinstance(value, list) and len(value) > 1:
        yield "'allOf' of several members"
    pairs = itertools.combinations(value, 2) if choice == "oneOf" and isinstance(value, list) else ()
    if not all(_apart(one, other, root) for one, other in pairs):
        yield "'oneOf' of members that may both hold"


def _of_types(schema: Schema) -> Iterator[str]:
    """What xgrammar passes over in strings and numbers."""
    whole = "number" not in _listed(schema.get("type")) and isinstance(schema.get("multipleOf"), int)
    if "multipleOf" in schema and not whole:
        yield "'multipleOf' of other than whole numbers"
    if str(schema.get("format")) in STRANGE:
        yield f"format {schema['format']!r}"
    if isinstance(pattern := schema.get("pattern"), str) and re.search(r"\(\?<?[=!]|\\[bB]", pattern):
        yield f"what looks ahead, behind or for the border of a word in 'pattern' {pattern!r}"


def _of_objects(schema: Schema) -> Iterator[str]:
    """What xgrammar passes over in the names of properties."""
    properties, patterns = (_dictionary(schema, keyword) for keyword in ("properties", "patternProperties"))
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
    """Whether a pattern may match a name; one that Python cannot read may."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _dictionary(schema: Schema, keyword: str) -> Schema:
    found = schema.get(keyword)
    return found if isinstance(found, dict) else {}


def _required(schema: Schema) -> list[str]:
    found = schema.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _listed(types: Any) -> list:
    return types if isinstance(types, list) else [types]


def _resolved(schema: Any, root: Any) -> Any:
    """What a schema refers to; nothing is known of it where that is nowhere."""
    for _ in range(DEEP):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            return schema
        name, schema = schema["$ref"], root
        for part in name.split("/")[1:]:
            schema = schema.get(part) if isinstance(schema, dict) else None
    return {}


def _kinds(schema: Any, root: Any, deep: int = DEEP) -> set[str]:
    """The types of the values a schema may allow, numbers told apart."""
    schema = _resolved(schema, root)
    if not isinstance(schema, dict) or not deep:
        return ALL
    if (values := _values(schema)) is not None:
        return set().union(*map(_kind, values))
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            return set().union(*(_kinds(each, root, deep - 1) for each in schema[keyword]))
    if "type" in schema:
        return set().union(*(KINDS.get(name, {name}) for name in _listed(schema["type"]) if isinstance(name, str)))
    implied = {"object": OBJECT, "array": ARRAY}
    return {name for name, keywords in implied.items() if schema.keys() & set(keywords)} or ALL


def _kind(value: Any) -> set[str]:
    names = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
    if isinstance(value, float) and value % 1:
        return {"fraction"}
    return {names.get(type(value), "integer")}


def _values(schema: Schema) -> list | None:
    """The values a schema lists, None where it lists none."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _apart(one: Any, other: Any, root: Any, deep: int = DEEP) -> bool:
    """Whether no value is of both schemas, as far as types, constants and the properties of objects tell."""
    kinds = _kinds(one, root) & _kinds(other, root)
    if not kinds:
        return True
    one, other = _resolved(one, root), _resolved(other, root)
    if not isinstance(one, dict) or not isinstance(other, dict) or not deep:
        return False
    listed = _values(one), _values(other)
    if listed[0] is not None and listed[1] is not None:
        return not any(value in listed[1] for value in listed[0])
    return kinds == {"object"} and _objects_apart(one, other, root, deep)


def _objects_apart(one: Schema, other: Schema, root: Any, deep: int) -> bool:
    """Whether a property that both require differs, or one requires what the other does not have."""
    mine, theirs = _dictionary(one, "properties"), _dictionary(other, "properties")
    wanted, asked = set(_required(one)), set(_required(other))
    if (_closed(other) and wanted - theirs.keys()) or (_closed(one) and asked - mine.keys()):
        return True
    shared = wanted & asked & mine.keys() & theirs.keys()
    return any(_apart(mine[name], theirs[name], root, deep - 1) for name in shared)


def _closed(schema: Schema) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema
