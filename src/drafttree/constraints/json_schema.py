"""Refuses JSON schemas that xgrammar would not enforce in full, naming the part it would silently ignore.

xgrammar reads a schema as exactly one thing: a reference, a constant, a choice, or a type with that type's keywords. It
ignores keywords it does not know, keywords beside one that takes precedence, and keywords that need a type when none is
given.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from drafttree.constraints.name_patterns import NamePatterns
from drafttree.constraints.schema_comparison import (
    ARRAY_KEYWORDS,
    OBJECT_KEYWORDS,
    Schema,
    SchemaComparison,
    as_list,
    dict_entry,
    required,
)
from drafttree.constraints.schema_numbers import RANGE_KEYWORDS, check_numbers, ignored_numbers
from drafttree.constraints.string_patterns import ignored_part, prepare_pattern
from drafttree.core.errors import ConfigError

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

TYPED_KEYWORDS = (*STRING_KEYWORDS, *RANGE_KEYWORDS, "multipleOf", "minItems", "maxItems", "required")
TYPED_KEYWORDS += ("patternProperties", "propertyNames", "minProperties", "maxProperties")
"""Keywords that xgrammar reads only beside an explicit or inferred type."""
KNOWN_KEYWORDS = {*CHOICE_KEYWORDS, *OBJECT_KEYWORDS, *ARRAY_KEYWORDS, *TYPED_KEYWORDS, "type"}
MAY_BE_NULL = {"const", "default"}
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

MAX_NESTING = 200
"""Levels of objects and arrays in a schema; xgrammar takes a second for 400, and the cube of their number."""


def prepare_schema(root: Any) -> Any:
    """Check that xgrammar enforces all of a schema, and replace `oneOf` of disjoint members by `anyOf`.

    xgrammar refuses some `oneOf` whose members it cannot tell apart; `anyOf` of disjoint members means the same.

    Keywords that are null are left out.

    Args:
        root: the schema as `json.loads` returns it; it is changed in place and returned.

    Raises:
        ConfigError: xgrammar would ignore a part of the schema; the message names it and its location. Or it is nested
            too deeply, a number in it is too large, or its members refer to each other too often to be compared.
    """
    _check_nesting(root)
    drop_nulls(root)
    check_numbers(root)
    pending, comparison, names = [("#", root)], SchemaComparison(root), NamePatterns()
    seen: set[int] = set()
    while pending:
        location, schema = pending.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if found := next(_ignored_parts(schema, comparison, names), None):
            part = f"{found} at {location}"
            raise ConfigError(f"invalid JSON schema: {part} is not enforced by xgrammar; leave it out")
        pending += [(f"{location}/{name}", below) for name, below in _subschemas(schema)]
        if isinstance(reference := schema.get("$ref"), str):
            pending.append((reference, comparison.resolve(reference)))
        if isinstance(schema.get("oneOf"), list):
            schema["anyOf"] = schema.pop("oneOf")
        _prepare_patterns(schema)
    return root


def drop_nulls(root: Any) -> Any:
    """Leave out the keywords of a schema that are null, which some clients write for those that are not set."""
    pending = [root]
    while pending:
        schema = pending.pop()
        if isinstance(schema, dict):
            for keyword in [name for name, value in schema.items() if value is None and name not in MAY_BE_NULL]:
                del schema[keyword]
            pending += [below for _, below in _subschemas(schema)]
    return root


def failing_part(root: Schema, fails: Callable[[Schema], bool]) -> str:
    """The location of the innermost schema of a document at which another parser fails.

    Args:
        root: the document.
        fails: whether the parser does so on a document.
    """

    def fails_alone(schema: Any) -> bool:
        # A reference is read in place of all that is beside it, which the schema's own references still find.
        defined = {**dict_entry(root, "$defs"), "this": schema}
        return fails({**root, "$defs": defined, "$ref": "#/$defs/this"})

    location, schema = "#", root
    while isinstance(schema, dict):
        found = next(((name, each) for name, each in _subschemas(schema) if fails_alone(each)), None)
        if found is None:
            break
        location, schema = f"{location}/{found[0]}", found[1]
    return location


def _prepare_patterns(schema: Schema) -> None:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = prepare_pattern(pattern)
    if names := dict_entry(schema, "patternProperties"):
        schema["patternProperties"] = {prepare_pattern(name): each for name, each in names.items()}


def _check_nesting(root: Any) -> None:
    level = [root]
    for _ in range(MAX_NESTING + 1):
        inside = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [*itertools.chain.from_iterable(inside)]
    if level:
        raise ConfigError(f"invalid JSON schema: it is nested more than {MAX_NESTING} levels deep; name parts in $defs")


def _subschemas(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside another, each with its location."""
    for keyword in SINGLE_SCHEMAS:
        if keyword in schema:
            yield keyword, schema[keyword]
    if isinstance(names := schema.get("propertyNames"), dict):
        names.setdefault("type", "string")
        yield "propertyNames", names
    for keyword in MAPS_OF_SCHEMAS:
        if isinstance(inside := schema.get(keyword), dict):
            yield from ((f"{keyword}/{name}", each) for name, each in inside.items())
    for keyword in LISTS_OF_SCHEMAS:
        if isinstance(inside := schema.get(keyword), list):
            yield from ((f"{keyword}/{place}", each) for place, each in enumerate(inside))


def _ignored_parts(schema: Schema, comparison: SchemaComparison, names: NamePatterns) -> Iterator[str]:
    """Yield the parts of a schema that xgrammar would ignore, without looking into the schemas inside it."""
    yield from (repr(keyword) for keyword in UNSUPPORTED_KEYWORDS if keyword in schema)
    if schema.get("uniqueItems"):
        yield "'uniqueItems'"
    yield from ignored_numbers(schema)
    choice = next((keyword for keyword in CHOICE_KEYWORDS if keyword in schema), None)
    if choice:
        yield from _ignored_beside_choice(choice, schema, comparison)
        yield from _ignored_in_choice(choice, schema, comparison)
        return
    if not schema.keys() & {"type", *OBJECT_KEYWORDS, *ARRAY_KEYWORDS}:
        yield from (f"{keyword!r} without a type beside it" for keyword in TYPED_KEYWORDS if keyword in schema)
    read = schema.keys() - ({"format"} if str(schema.get("format")) not in ENFORCED_FORMATS else set())
    for keyword, others in IGNORED_BESIDE.items():
        yield from (f"{keyword!r} beside {other!r}" for other in others if {keyword, other} <= read)
    yield from _ignored_in_values(schema)
    yield from _ignored_in_properties(schema, names)


def _ignored_beside_choice(choice: str, schema: Schema, comparison: SchemaComparison) -> Iterator[str]:
    """Yield keywords that xgrammar ignores beside a choice keyword, except a `type` that restricts nothing further."""
    for keyword in sorted(KNOWN_KEYWORDS & schema.keys() - {choice}):
        rest = {name: value for name, value in schema.items() if name != "type"}
        types = comparison.possible_types
        if keyword != "type" or not types(rest) <= types({"type": schema["type"]}):
            yield f"{keyword!r} beside {choice!r}"


def _ignored_in_choice(choice: str, schema: Schema, comparison: SchemaComparison) -> Iterator[str]:
    value = schema[choice]
    if choice == "$ref" and isinstance(value, str) and value != "#" and not value.startswith("#/"):
        yield f"'$ref' to {value!r}, which is not of the form #/...,"
    if choice == "$ref" and isinstance(value, str) and "" in value.split("/")[1:]:
        yield f"the part without a name of '$ref' to {value!r}"
    if choice == "allOf" and isinstance(value, list) and len(value) > 1:
        yield "'allOf' of several members"
    pairs = itertools.combinations(value, 2) if choice == "oneOf" and isinstance(value, list) else ()
    if not all(comparison.disjoint(first, second) for first, second in pairs):
        yield "'oneOf' of members that may both hold"


def _ignored_in_values(schema: Schema) -> Iterator[str]:
    """Yield the parts of string and number schemas that xgrammar ignores."""
    whole_multiple = "number" not in as_list(schema.get("type")) and isinstance(schema.get("multipleOf"), int)
    if "multipleOf" in schema and not whole_multiple:
        yield "'multipleOf' of other than whole_multiple numbers"
    if str(schema.get("format")) in UNENFORCED_FORMATS:
        yield f"format {schema['format']!r}"
    if isinstance(pattern := schema.get("pattern"), str):
        yield from _ignored_in_pattern("pattern", pattern)


def _ignored_in_pattern(keyword: str, pattern: str) -> Iterator[str]:
    if found := ignored_part(pattern):
        yield f"{found} in {keyword!r} {pattern!r}"


def _ignored_in_properties(schema: Schema, names: NamePatterns) -> Iterator[str]:
    """Yield the constraints on property names that xgrammar ignores."""
    properties, patterns = (dict_entry(schema, keyword) for keyword in ("properties", "patternProperties"))
    missing = [name for name in required(schema) if name not in properties]
    yield from (f"'required' of {name!r}, which is not among 'properties'," for name in missing)
    repeatable = {"patternProperties", "propertyNames", "additionalProperties", "unevaluatedProperties"}
    if any(schema.get(keyword, False) is not False for keyword in repeatable):
        least = schema.get("minProperties", 0)
        if isinstance(least, int) and least > len(set(required(schema)) & properties.keys()) + 1:
            yield f"'minProperties' {least}, which one name several times would meet,"
    if len(patterns) > 1:
        yield "'patternProperties' of several patterns, which may both match,"
    for pattern in patterns:
        yield from _ignored_in_pattern("patternProperties", pattern)
    yield from (
        f"'patternProperties' {pattern!r}, which {name!r} of 'properties' may match,"
        for pattern, name in itertools.product(patterns, properties)
        if names.may_match(pattern, name)
    )
