"""Makes grammars from JSON schemas; a keyword that a grammar would not enforce is refused by name.

llguidance's own reader of schemas finds most mistakes. Schemas that it accepts are translated here (`json_reader.py`,
`json_rules.py`), because its own rules allow only few spellings of JSON. Some keywords are replaced by others. An
object that names properties may have no others unless its schema says so; otherwise a model could invent more and more.
"""

import copy
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations
from typing import Any, NamedTuple, TypeGuard

from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from drafttree.constraints.formats import FORMATS, LONGEST_HOSTNAME, UNENFORCED_FORMATS
from drafttree.constraints.json_numbers import LARGEST_WHOLE, Bound, inward
from drafttree.constraints.json_reader import ValueReader
from drafttree.constraints.json_rules import JsonRules
from drafttree.constraints.json_values import Value
from drafttree.constraints.lark import Rules, json_texts, one_line, problem_of
from drafttree.constraints.patterns import check_text, rust_pattern
from drafttree.constraints.schema_comparison import (
    Schema,
    SchemaComparison,
    as_list,
    dict_entry,
    implied_type,
    required,
)
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
    "divisibleBy",
    "minimumCanEqual",
    "maximumCanEqual",
)
WITHOUT_EFFECT = ("then", "else", "minContains", "maxContains", "$schema", "x-guidance")
"""Keywords that mean nothing alone, and one that llguidance would take as its own."""
CHOICES = ("$ref", "anyOf", "oneOf", "allOf")
CHOICE_KEYWORDS = (*CHOICES, "const", "enum")
ANNOTATIONS = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$id"}
ANNOTATIONS |= {"$defs", "definitions", "type", "discriminator", "$anchor", *WITHOUT_EFFECT}
"""Keywords that add no constraint to a choice beside them."""

COUNT_KEYWORDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
RANGE_KEYWORDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
LARGEST_MULTIPLE = 2**16
MOST_DECIMALS = 60
SHOWN_DIGITS = 20

MAPS_OF_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions")
LISTS_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE_SCHEMAS = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
MAX_NESTING = 100
"""The most levels of objects and arrays in a schema; llguidance reads JSON of 128 levels."""
MAX_SCHEMAS = 20_000
"""The most schemas in a document: llguidance follows them by recursion."""
MAX_OPTIONAL = 1_500
"""The most optional properties of an object; with more, too many continuations are possible."""
MAX_PLACES = 300
"""The most schemas that are tested for the cause of an error, at a millisecond each."""
MAX_PATTERNS = 100
"""The most patterns of names in a document: any two are compared, in up to a millisecond."""
MAY_BE_NULL = {"const", "default"}
TOO_DEEP = "invalid JSON schema: its references are nested too deeply; name fewer schemas by others"


def schema_texts(schema: object, rules: Rules, *, any_whitespace: bool = False) -> str:
    """The expression of the JSON texts that conform to a schema.

    Args:
        schema: as in `drafttree.grammar.json_schema`.
        rules: the grammar's rules, to which this adds.
        any_whitespace: as in `drafttree.grammar.json_schema`.

    Raises:
        ConfigError: the schema is invalid, or a part of it cannot be enforced; the message names it and its location.
    """
    value, reader = read_schema(schema)
    try:
        return JsonRules(reader, rules, any_whitespace=any_whitespace).expression(value)
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None


def read_schema(schema: object) -> tuple[Value, ValueReader]:
    """The values that conform to a schema, and their reader; arguments and errors are those of `schema_texts`."""
    root = prepare_schema(load_schema(schema))
    library_root = _for_library(root)
    if problem := problem_of(Rules().grammar(json_texts(library_root))):
        raise ConfigError(f"invalid JSON schema: {problem.rstrip('.')} at {_place(library_root, problem)}")
    reader = ValueReader(root)
    try:
        return reader.read(root), reader
    except RecursionError:
        raise ConfigError(TOO_DEEP) from None


def load_schema(schema: object) -> Any:
    """Convert JSON text, a dictionary or a pydantic model to the form of `json.loads`.

    Raises:
        ConfigError: `schema` is not one of these, or not valid JSON.
    """
    try:
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            schema = schema.model_json_schema()
        if isinstance(schema, str):
            return json.loads(schema.removeprefix("\ufeff"))
        if isinstance(schema, dict):
            return json.loads(json.dumps(schema))
    except json.JSONDecodeError as error:
        message = f"invalid JSON schema: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ConfigError(message) from None
    except (TypeError, ValueError, RecursionError, PydanticUserError) as error:
        raise ConfigError(f"invalid JSON schema: {one_line(error)}") from None
    type_name = schema.__name__ if isinstance(schema, type) else type(schema).__name__
    raise ConfigError(f"a JSON schema is text, a dictionary or a pydantic model, not {type_name}")


class _CheckedSchema(NamedTuple):
    """A part of a JSON schema that `prepare_schema` has checked, and how strictly.

    Attributes:
        schema: the schema.
        is_joined: whether its values must conform to other schemas too, which is checked more strictly.
    """

    schema: Schema
    is_joined: bool


def prepare_schema(root: Any) -> Any:
    """Check that a schema can be enforced completely, and rewrite it with fewer keywords.

    Keywords that are null are removed.

    Args:
        root: the schema as `json.loads` returns it; it is changed in place and returned.

    Raises:
        ConfigError: a part of the schema cannot be enforced; the message names it and its location.
    """
    _check_nesting(root)
    check_text("JSON schema", json.dumps(root, ensure_ascii=False))
    drop_nulls(root)
    _check_numbers(root)
    comparison = SchemaComparison(root)
    schemas = dict[int, _CheckedSchema]()
    pattern_count = 0
    pending = [("#", root, False)]
    while pending:
        location, schema, is_joined = pending.pop()
        if not isinstance(schema, dict):
            continue
        checked_schema = schemas.get(id(schema))
        if checked_schema is None:
            pattern_count += len(dict_entry(schema, "patternProperties"))
        elif checked_schema.is_joined or not is_joined:
            continue
        is_joined = is_joined or _joins(schema)
        if pattern_count > MAX_PATTERNS:
            raise ConfigError(f"invalid JSON schema: it has more than {MAX_PATTERNS} 'patternProperties'; give fewer")
        schemas[id(schema)] = _CheckedSchema(schema, is_joined)
        if len(schemas) > MAX_SCHEMAS:
            raise ConfigError(f"invalid JSON schema: it has more than {MAX_SCHEMAS} schemas; give fewer")
        if constraint := next(_unenforced(schema, comparison, nested=location != "#", joined=is_joined), None):
            raise ConfigError(f"invalid JSON schema: {constraint} at {location} cannot be enforced; leave it out")
        pending += [(f"{location}/{name}", subschema, is_joined) for name, subschema in _subschemas(schema)]
        if isinstance(reference := schema.get("$ref"), str):
            pending.append((reference, comparison.resolve(reference), is_joined))
    for checked_schema in schemas.values():
        _rewrite(checked_schema.schema, joined=checked_schema.is_joined)
    if isinstance(root, dict):
        root.pop("$id", None)
    return root


def drop_nulls(root: Any) -> Any:
    """Remove the keywords of a schema that are null, which some clients send for keywords that are not set."""
    for schema in _schemas(root):
        for keyword, value in [*schema.items()]:
            if value is None and keyword not in MAY_BE_NULL:
                del schema[keyword]
    return root


def _place(root: Any, problem: str) -> str:
    """The location of the innermost schema that has the same error as the whole document.

    Args:
        root: the document.
        problem: llguidance's error.
    """
    location = "#"
    schema = root
    attempts = 0
    while isinstance(schema, dict):
        # Each schema is tested with nothing else but the definitions, which it may refer to.
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        for name, subschema in _subschemas(schema):
            attempts += 1
            if attempts > MAX_PLACES:
                return location
            expression = json_texts({**definitions, "allOf": [subschema]})
            if not name.startswith((*definitions,)) and problem_of(Rules().grammar(expression)) == problem:
                location = f"{location}/{name}"
                schema = subschema
                break
        else:
            break
    return location


def _joins(schema: Schema) -> bool:
    """Whether a value must conform to several parts of a schema, each of which may name only some properties."""
    choices = [keyword for keyword in CHOICES if keyword in schema]
    has_several = len(choices) > 1 or (isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1)
    return has_several or bool(choices and schema.keys() - ANNOTATIONS - {*choices})


def _check_nesting(root: Any) -> None:
    level = [root]
    for _ in range(MAX_NESTING + 1):
        level = [child for value in level for child in _children(value)]
    if level:
        raise ConfigError(f"invalid JSON schema: it is nested more than {MAX_NESTING} levels deep; name parts in $defs")


def _children(value: Any) -> Iterable[Any]:
    """The values directly inside another."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _check_numbers(schema: Any) -> None:
    for number in _numbers(schema):
        # A whole number may be too large for `isfinite`.
        is_readable = abs(number) <= sys.float_info.max if isinstance(number, int) else math.isfinite(number)
        if not is_readable:
            raise ConfigError(f"invalid JSON schema: {_shown(number)} is not a number that can be read; leave it out")


def _schemas(root: Any) -> Iterator[Schema]:
    """Yield a schema and all schemas inside it."""
    pending = [root]
    while pending:
        if isinstance(schema := pending.pop(), dict):
            yield schema
            pending += [subschema for _, subschema in _subschemas(schema)]


def _reachable(root: Any) -> Iterator[Schema]:
    """Yield a schema, all schemas inside it, and those that their references lead to, each once."""
    comparison = SchemaComparison(root)
    pending = [root]
    visited_ids = set[int]()
    while pending:
        if isinstance(schema := pending.pop(), dict) and id(schema) not in visited_ids:
            visited_ids.add(id(schema))
            yield schema
            pending += [subschema for _, subschema in _subschemas(schema)]
            if isinstance(reference := schema.get("$ref"), str):
                pending.append(comparison.resolve(reference))


def _subschemas(schema: Schema) -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside another, each with its location there."""
    for keyword in SINGLE_SCHEMAS:
        if keyword in schema:
            yield keyword, schema[keyword]
    if isinstance(schema.get("items"), list):
        for index, subschema in enumerate(schema["items"]):
            yield f"items/{index}", subschema
    for keyword in MAPS_OF_SCHEMAS:
        for name, subschema in dict_entry(schema, keyword).items():
            yield f"{keyword}/{name}", subschema
    for keyword in LISTS_OF_SCHEMAS:
        if isinstance(subschemas := schema.get(keyword), list):
            for index, subschema in enumerate(subschemas):
                yield f"{keyword}/{index}", subschema


def _unenforced(schema: Schema, comparison: SchemaComparison, *, nested: bool, joined: bool) -> Iterator[str]:
    """Yield the parts of a schema that cannot be enforced, except those inside its subschemas.

    Args:
        schema: the schema.
        comparison: comparisons within its document.
        nested: whether it is inside another schema.
        joined: whether its values must conform to other schemas too.
    """
    for keyword in UNSUPPORTED_KEYWORDS:
        if keyword in schema:
            yield repr(keyword)
    if not isinstance(schema.get("required", []), list) and schema["required"] is not False:
        yield f"'required' {_shown(schema['required'])} (in draft 3; now the object lists its properties' names)"
    if len(dict_entry(schema, "properties").keys() - {*required(schema)}) > MAX_OPTIONAL:
        yield f"'properties' of which more than {MAX_OPTIONAL} are not required"
    if schema.get("uniqueItems"):
        yield "'uniqueItems'"
    if nested and isinstance(schema.get("$id"), str):
        yield f"'$id' {schema['$id']!r} inside"
    if isinstance(value := schema.get("$ref"), str) and value != "#" and not value.startswith("#/"):
        yield f"the '$ref' {value!r} (only local references such as '#/$defs/name' are supported)"
    if isinstance(value := schema.get("oneOf"), list):
        member_pairs = combinations(value, 2)
        if not all(comparison.disjoint(member, other_member) for member, other_member in member_pairs):
            yield "'oneOf' of members that may both hold"
    if str(schema.get("format")) in UNENFORCED_FORMATS:
        yield f"format {schema['format']!r}"
    yield from _unenforced_numbers(schema, joined=joined)
    yield from _unenforced_names(schema, joined=joined)


def _unenforced_numbers(schema: Schema, *, joined: bool) -> Iterator[str]:
    for keyword in RANGE_KEYWORDS:
        if _is_number(bound := schema.get(keyword)) and abs(bound) > 2**63:
            yield f"{keyword!r} of {_shown(bound)}, which is beyond 64 bits,"
        if _is_number(bound) and Bound.of(bound).decimals > MOST_DECIMALS:
            yield f"{keyword!r} of {_shown(bound)}, which has more than {MOST_DECIMALS} decimals,"
    minimum = schema.get("minimum")
    maximum = schema.get("maximum")
    if _is_number(minimum) and _is_number(maximum) and minimum > maximum:
        yield f"'minimum' {_shown(minimum)} above 'maximum' {_shown(maximum)}"
    for keyword in ("const", "enum"):
        for number in _numbers(schema.get(keyword)):
            if isinstance(number, int) and abs(number) > LARGEST_WHOLE:
                yield f"{_shown(number)} in {keyword!r}, which is beyond 64 bits,"
    if _is_number(multiple := schema.get("multipleOf")):
        if joined:
            yield f"'multipleOf' {_shown(multiple)} beside another schema"
        if multiple == 0:
            yield "'multipleOf' 0"
        if multiple > LARGEST_MULTIPLE:
            yield f"'multipleOf' {_shown(multiple)}, which is more than {LARGEST_MULTIPLE},"


def _unenforced_names(schema: Schema, *, joined: bool) -> Iterator[str]:
    """Yield the constraints on names and number of properties that cannot be enforced."""
    min_properties = schema.get("minProperties", 0)
    is_open = schema.get("additionalProperties", joined or not _names_properties(schema)) is not False
    may_repeat = _is_number(min_properties) and min_properties > (1 if joined else len({*required(schema)}) + 1)
    if may_repeat and (is_open or dict_entry(schema, "patternProperties")):
        yield f"'minProperties' {_shown(min_properties)}, which one name several times would meet,"
    if "propertyNames" in schema and schema["propertyNames"] is not True:
        siblings = schema.keys() & {"properties", "patternProperties", "required"}
        if siblings:
            yield f"'propertyNames' beside {min(siblings)!r}"
        elif joined or _name_pattern(schema["propertyNames"]) is None:
            yield "'propertyNames' other than a pattern, lengths, a const or an enum"
    for keyword, applicators in (
        ("unevaluatedProperties", ("additionalProperties",)),
        ("unevaluatedItems", ("items", "additionalItems")),
    ):
        if schema.get(keyword, True) is not True and (joined or schema.keys() & {*CHOICES, *applicators}):
            yield f"{keyword!r} beside another schema"


def _name_pattern(names: Any) -> str | None:
    """The pattern that says the same of a name as the schema of names; None where none does."""
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return None
    match sorted(names.keys() - ANNOTATIONS):
        case ["pattern"] if isinstance(names["pattern"], str):
            return names["pattern"]
        case ["const"] | ["enum"]:
            constants = [names["const"]] if "const" in names else names["enum"]
            if isinstance(constants, list) and constants and all(isinstance(name, str) for name in constants):
                escaped_names = [re.escape(name).replace(r"\ ", " ") for name in constants]
                return f"^(?:{'|'.join(escaped_names)})$"
        case [] | ["maxLength"] | ["minLength"] | ["maxLength", "minLength"]:
            min_length = names.get("minLength", 0)
            max_length = names.get("maxLength", "")
            if isinstance(min_length, int) and isinstance(max_length, int | str):
                return rf"^[\s\S]{{{min_length},{max_length}}}$"
    return None


def _rewrite(schema: Schema, *, joined: bool) -> None:
    """Rewrite a schema in place with keywords that llguidance and `ValueReader` know."""
    for keyword in (*WITHOUT_EFFECT, "uniqueItems"):
        schema.pop(keyword, None)
    if "type" not in schema and not schema.keys() & {*CHOICE_KEYWORDS} and (type_name := implied_type(schema)):
        schema["type"] = type_name
    if schema.get("required") is False:  # of draft 3
        del schema["required"]
    for keyword in COUNT_KEYWORDS:
        if isinstance(count := schema.get(keyword), float) and count.is_integer():
            schema[keyword] = int(count)
    if (form := str(schema.get("format"))) not in FORMATS:
        schema.pop("format", None)
    if form == "hostname":
        schema["maxLength"] = min(LONGEST_HOSTNAME, schema.get("maxLength", LONGEST_HOSTNAME))
    for keyword, synonym in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if keyword in schema:
            value = schema.pop(keyword)
            schema.setdefault(synonym, value)
    if (names := schema.pop("propertyNames", True)) is not True:
        schema["patternProperties"] = {_name_pattern(names): schema.pop("additionalProperties", True)}
        schema["additionalProperties"] = False
    if not joined:
        _close(schema)
    if "oneOf" in schema:
        alternatives = schema.pop("oneOf")
        if "anyOf" in schema:
            schema["allOf"] = [*as_list(schema.get("allOf", [])), {"anyOf": alternatives}]
        else:
            schema["anyOf"] = alternatives


def _for_library(root: Any) -> Any:
    """A copy of a prepared document for llguidance: in its dialect of patterns, without formats and large bounds."""
    library_root = copy.deepcopy(root)
    for schema in _reachable(library_root):
        for keyword in RANGE_KEYWORDS:
            if isinstance(bound := schema.get(keyword), int) and not isinstance(bound, bool):
                schema[keyword] = inward(Fraction(bound), up=keyword in ("minimum", "exclusiveMinimum"))
        if isinstance(pattern := schema.get("pattern"), str):
            schema["pattern"] = rust_pattern("JSON schema", pattern)
        if form := schema.pop("format", None):
            forms = [{"pattern": rust_pattern("JSON schema", pattern)} for pattern in FORMATS[form]]
            schema["allOf"] = [*as_list(schema.get("allOf", [])), *forms]
        if patterns := dict_entry(schema, "patternProperties"):
            schema["patternProperties"] = {
                rust_pattern("JSON schema", name): subschema for name, subschema in patterns.items()
            }
    return library_root


def _close(schema: Schema) -> None:
    """Forbid further properties and items if some are named and the schema does not mention others."""
    if _names_properties(schema) and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
        if isinstance(properties := schema.get("properties", {}), dict):
            schema["properties"] = {**properties}
            for name in required(schema):
                schema["properties"].setdefault(name, True)
    prefix_items = schema.get("prefixItems") or schema.get("items")
    min_items = schema.get("minItems", 0)
    if isinstance(prefix_items, list) and isinstance(min_items, int) and min_items <= len(prefix_items):
        schema.setdefault("items" if "prefixItems" in schema else "additionalItems", False)


def _names_properties(schema: Schema) -> bool:
    return any(isinstance(schema.get(keyword), dict) for keyword in ("properties", "patternProperties"))


def _numbers(root: Any) -> Iterator[float]:
    """All numbers in a value, at any depth."""
    pending = [root]
    while pending:
        value = pending.pop()
        pending += _children(value)
        if _is_number(value):
            yield value


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(number: object) -> str:
    text = str(number)
    return text if len(text) <= SHOWN_DIGITS else f"{text[:8]}... ({len(text.lstrip('-'))} digits)"
