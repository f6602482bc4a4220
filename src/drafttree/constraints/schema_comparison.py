"""Compares schemas within a JSON schema: the types that each allows, and whether a value can conform to two."""

from typing import Any
from urllib.parse import unquote

from drafttree.core.errors import ConfigError

Schema = dict[str, Any]

OBJECT_KEYWORDS = ("properties", "additionalProperties", "unevaluatedProperties")
ARRAY_KEYWORDS = ("items", "prefixItems", "unevaluatedItems")
"""Keywords (and those above) from which the type `array` (or `object`) is inferred."""

SPLIT_TYPES = {"number": {"integer", "fraction"}}
ALL_TYPES = {"null", "boolean", "integer", "fraction", "string", "array", "object"}
MAX_DEPTH = 16
"""The most levels of references and properties that a comparison of two schemas follows."""
MAX_STEPS = 200_000
"""The most steps of all comparisons in one document, which take about two seconds."""
VALUES_PER_STEP = 32
"""Pairs of constants whose comparison counts as one step."""


class SchemaComparison:
    """Compares the schemas of one document.

    Results are cached by schema or pair, and depth: schemas may refer to each other in circles, and the number of paths
    along them grows exponentially with the depth.

    Args:
        root: the document, from which references are resolved.
        max_steps: the most steps of all comparisons; None for `MAX_STEPS`.
    """

    def __init__(self, root: Any, max_steps: int | None = None) -> None:
        self._root = root
        self._max_steps = MAX_STEPS if max_steps is None else max_steps
        self._steps = 0
        # Keys have the ids of schemas. Values keep the schemas alive, because the id of a freed one may be reused.
        self._types: dict[tuple[int, int], tuple[Any, set[str]]] = {}
        self._disjoint: dict[tuple[int, int, int], tuple[Any, Any, bool]] = {}

    def possible_types(self, schema: Any, depth: int = MAX_DEPTH) -> set[str]:
        """Types of the values that a schema may allow; `number` is split into `integer` and `fraction`.

        Raises:
            ConfigError: the comparisons take more than the allowed steps.
        """
        self._spend()  # also for a cached result: it may be needed once per pair of schemas
        key = id(schema), depth
        if key not in self._types:
            self._types[key] = schema, self._find_types(schema, depth)
        return self._types[key][1]

    def disjoint(self, schema: Any, other_schema: Any, depth: int = MAX_DEPTH) -> bool:
        """Whether types, constants or object properties prove that no value conforms to both schemas.

        Raises:
            ConfigError: the comparisons take more than the allowed steps.
        """
        self._spend()
        key = id(schema), id(other_schema), depth
        if key not in self._disjoint:
            self._disjoint[key] = schema, other_schema, self._find_disjoint(schema, other_schema, depth)
        return self._disjoint[key][2]

    def _spend(self, steps: int = 1) -> None:
        self._steps += steps
        if self._steps > self._max_steps:
            raise ConfigError(
                f"invalid JSON schema: comparing the members of its 'anyOf' and 'oneOf' takes more than "
                f"{self._max_steps} steps; use fewer members, or fewer references between them"
            )

    def _find_types(self, schema: Any, depth: int) -> set[str]:
        schema = self.follow_refs(schema)
        if schema is False:
            return set()
        if not isinstance(schema, dict) or not depth:
            return ALL_TYPES
        types = ALL_TYPES
        if (values := _values(schema)) is not None:
            types = set().union(*map(_types_of_value, values))
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list) and schema[keyword]:
                member_types = [self.possible_types(member, depth - 1) for member in schema[keyword]]
                types = types.intersection(set().union(*member_types))
        for member in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            types = types & self.possible_types(member, depth - 1)
        if "type" in schema:
            named_types = set[str]()
            for name in as_list(schema["type"]):
                if isinstance(name, str):
                    named_types |= SPLIT_TYPES.get(name, {name})
            types = types & named_types
        return types

    def _find_disjoint(self, schema: Any, other_schema: Any, depth: int) -> bool:
        types = self.possible_types(schema) & self.possible_types(other_schema)
        if not types:
            return True
        schema = self.follow_refs(schema)
        other_schema = self.follow_refs(other_schema)
        if types == ALL_TYPES:
            type_name = implied_type(schema)
            if type_name and type_name == implied_type(other_schema):
                types = {type_name}  # others conform to both, but are never written
        if not isinstance(schema, dict) or not isinstance(other_schema, dict) or not depth:
            return False
        values = _values(schema)
        other_values = _values(other_schema)
        if values is not None and other_values is not None:
            self._spend(len(values) * len(other_values) // VALUES_PER_STEP)
            return not any(value in other_values for value in values)
        return types == {"object"} and self._objects_disjoint(schema, other_schema, depth)

    def _objects_disjoint(self, schema: Schema, other_schema: Schema, depth: int) -> bool:
        """Whether a property that both require has disjoint schemas, or one requires a property the other forbids."""
        if _requires_forbidden(schema, other_schema) or _requires_forbidden(other_schema, schema):
            return True
        properties = dict_entry(schema, "properties")
        other_properties = dict_entry(other_schema, "properties")
        required_names = {*required(schema)} & {*required(other_schema)}
        shared_names = required_names & properties.keys() & other_properties.keys()
        return any(self.disjoint(properties[name], other_properties[name], depth - 1) for name in shared_names)

    def follow_refs(self, schema: Any) -> Any:
        """Follow references from a schema; the result is {} for a circle, and None if one leads nowhere."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            schema = self.resolve(schema["$ref"])
        return {}

    def resolve(self, reference: str) -> Any:
        """The schema that a reference such as `#/$defs/name` leads to; None if there is none."""
        schema = self._root
        for segment in map(unquote, reference.split("/")[1:]):
            name = segment.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, list):
                schema = schema[int(name)] if name.isdecimal() and int(name) < len(schema) else None
            else:
                schema = schema.get(name) if isinstance(schema, dict) else None
        return schema


def implied_type(schema: Any) -> str | None:
    """The type that the keywords of a schema without `type` imply; None if they imply none."""
    if not isinstance(schema, dict) or "type" in schema:
        return None
    if schema.keys() & {*OBJECT_KEYWORDS}:
        return "object"
    return "array" if schema.keys() & {*ARRAY_KEYWORDS} else None


def dict_entry(schema: Schema, keyword: str) -> Schema:
    """The object under a keyword; {} if there is none."""
    entry = schema.get(keyword)
    return entry if isinstance(entry, dict) else {}


def required(schema: Schema) -> list[str]:
    """The names of the properties an object must have."""
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def as_list(types: Any) -> list:
    """The value of `type` as a list."""
    return types if isinstance(types, list) else [types]


def _types_of_value(value: Any) -> set[str]:
    names = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
    if isinstance(value, float) and value % 1:
        return {"fraction"}
    return {names.get(type(value), "integer")}


def _values(schema: Schema) -> list | None:
    """The values of `const` or `enum`; None if the schema has neither."""
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _requires_forbidden(schema: Schema, other_schema: Schema) -> bool:
    """Whether one object schema requires a property that the other, which allows only named ones, does not name."""
    is_closed = other_schema.get("additionalProperties") is False and "patternProperties" not in other_schema
    return is_closed and bool(set(required(schema)) - dict_entry(other_schema, "properties").keys())
