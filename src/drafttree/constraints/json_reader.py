"""Reads which values a prepared JSON schema allows, and intersects the values of several schemas."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from drafttree.constraints.formats import FORMATS
from drafttree.constraints.json_numbers import Bound
from drafttree.constraints.json_values import (
    ANYTHING,
    NOTHING,
    Anything,
    Array,
    Count,
    Number,
    Object,
    Reference,
    Several,
    Text,
    Value,
    Words,
    several,
)
from drafttree.constraints.lark import Rules, matching
from drafttree.constraints.patterns import texts_with
from drafttree.constraints.schema_comparison import Schema, SchemaComparison, as_list, dict_entry, required
from drafttree.core.errors import ConfigError

TYPES = ("null", "boolean", "number", "string", "array", "object")
ASSERTIONS = {
    *("type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("pattern", "format", "minLength", "maxLength"),
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    *("properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"),
}
"""Keywords that constrain the values of a type; all others refer to schemas or list values."""


class ValueReader:
    """Reads the values of one document.

    Args:
        root: the prepared document (`json_schema.prepare_schema`), from which references are resolved.
    """

    def __init__(self, root: Any) -> None:
        self._schemas = SchemaComparison(root)
        self._resolved: dict[str, Value | None] = {}
        self._matched: dict[str, dict[str, bool]] = {}

    def read(self, schema: Any) -> Value:
        """The values that a schema allows."""
        if not isinstance(schema, dict):
            return ANYTHING if schema else NOTHING
        value = ANYTHING
        assertions = {keyword: schema[keyword] for keyword in schema if keyword in ASSERTIONS}
        # Properties are written in the order in which schemas name them.
        first_assertion = "properties" if "properties" in assertions else next(iter(assertions), None)
        for keyword, operand in schema.items():
            if keyword == first_assertion:
                value = self.both(value, self._asserted(assertions))
            elif keyword in ("const", "enum"):
                value = self.both(value, _constants(operand if keyword == "enum" else [operand]))
            elif keyword == "anyOf":
                value = self.both(value, several(*map(self.read, operand)))
            elif keyword == "allOf":
                for member in operand:
                    value = self.both(value, self.read(member))
            elif keyword == "$ref":
                value = self.both(value, Reference(operand))
        return value

    def resolve(self, reference: Reference) -> Value:
        """The values of the schema that a reference leads to.

        Raises:
            ConfigError: the schema refers to itself beside other keywords.
        """
        location = reference.location
        if location not in self._resolved:
            self._resolved[location] = None
            self._resolved[location] = self.read(self._schemas.resolve(location))
        value = self._resolved[location]
        if value is None:
            raise ConfigError(
                f"invalid JSON schema: {location!r} combines a reference back to itself with other keywords; "
                "remove the reference"
            )
        return self.resolve(value) if isinstance(value, Reference) else value

    def both(self, left: Value, right: Value) -> Value:
        """The values that both allow."""
        if isinstance(left, Anything) or (isinstance(left, Reference) and left == right):
            return right
        if isinstance(right, Anything):
            return left
        if isinstance(left, Reference):
            return self.both(self.resolve(left), right)
        if isinstance(right, Reference):
            return self.both(left, self.resolve(right))
        if isinstance(left, Several):
            return several(*(self.both(member, right) for member in left.members))
        if isinstance(right, Several):
            return several(*(self.both(left, member) for member in right.members))
        match left, right:
            case Words(), Words():
                return Words(left.words & right.words) if left.words & right.words else NOTHING
            case Number(), Number():
                return _both_numbers(left, right)
            case Text(), Text():
                return self._both_texts(left, right)
            case Array(), Array():
                return self._both_arrays(left, right)
            case Object(), Object():
                return self._both_objects(left, right)
        return NOTHING

    def property_of(self, value: Object, name: str) -> Value:
        """The values of an object's property with a name."""
        if name in value.named:
            return value.named[name]
        for pattern, matched_value in value.matched.items():
            if self.matching(pattern, [name]):
                return matched_value
        return value.further

    def matching(self, pattern: str, texts: Iterable[str]) -> list[str]:
        """The texts in which a pattern matches some part."""
        texts = [*texts]
        verdicts = self._matched.setdefault(pattern, {})
        unchecked_texts = [text for text in texts if text not in verdicts]
        if unchecked_texts:
            rules = Rules()
            automaton = rules.add(texts_with("JSON schema", pattern, rules, as_json=False), plain=True)
            verdicts |= zip(unchecked_texts, matching(rules.grammar(automaton), unchecked_texts), strict=True)
        return [text for text in texts if verdicts[text]]

    def _asserted(self, schema: Schema) -> Value:
        """The values that the `ASSERTIONS` of a schema allow."""
        return several(*(self._of_type(name, schema) for name in as_list(schema.get("type", [*TYPES]))))

    def _of_type(self, name: str, schema: Schema) -> Value:
        match name:
            case "null":
                return Words(frozenset(["null"]))
            case "boolean":
                return Words(frozenset(["true", "false"]))
            case "number" | "integer":
                return _number(schema, whole=name == "integer")
            case "string":
                patterns = FORMATS.get(schema.get("format", ""), ())
                if "pattern" in schema:
                    patterns = (schema["pattern"], *patterns)
                return Text(patterns, _count(schema, "Length"))
            case "array":
                return self._array(schema)
        return self._object(schema)

    def _array(self, schema: Schema) -> Array:
        prefix_items = schema.get("prefixItems", [])
        item_schema = schema.get("items", True)
        if isinstance(item_schema, list):  # of older drafts
            prefix_items, item_schema = item_schema, schema.get("additionalItems", True)
        elif "additionalItems" in schema:
            prefix_items = []
        return Array(tuple(map(self.read, prefix_items)), self.read(item_schema), _count(schema, "Items"))

    def _object(self, schema: Schema) -> Value:
        properties = self._read_map(dict_entry(schema, "properties"))
        pattern_properties = self._read_map(dict_entry(schema, "patternProperties"))
        for pattern, value in pattern_properties.items():
            for name in self.matching(pattern, properties):
                properties[name] = self.both(properties[name], value)
        additional_property = self.read(schema.get("additionalProperties", True))
        required_names = tuple(dict.fromkeys(required(schema)))
        return _possible(
            Object(properties, pattern_properties, additional_property, required_names, _count(schema, "Properties"))
        )

    def _read_map(self, schemas: Schema) -> dict[str, Value]:
        return {name: self.read(schema) for name, schema in schemas.items()}

    def _both_texts(self, left: Text, right: Text) -> Value:
        patterns = tuple(dict.fromkeys([*left.patterns, *right.patterns]))
        length = left.length.both(right.length)
        listed_texts = right.listed if left.listed is None else left.listed
        if listed_texts is None:
            return Text(patterns, length)
        texts = [text for text in listed_texts if len(text) in length]
        if right.listed is not None:
            other_texts = {*right.listed}
            texts = [text for text in texts if text in other_texts]
        for pattern in patterns:
            texts = self.matching(pattern, texts)
        return Text(listed=tuple(texts)) if texts else NOTHING

    def _both_arrays(self, left: Array, right: Array) -> Array:
        first_items = list[Value]()
        for index in range(max(len(left.first), len(right.first))):
            first_items.append(self.both(left.item(index), right.item(index)))
        further_item = self.both(left.further, right.further)
        return Array(tuple(first_items), further_item, left.length.both(right.length))

    def _both_objects(self, left: Object, right: Object) -> Value:
        names = dict.fromkeys([*left.named, *right.named])
        patterns = dict.fromkeys([*left.matched, *right.matched])
        properties = {name: self.both(self.property_of(left, name), self.property_of(right, name)) for name in names}
        pattern_properties = {}
        for pattern in patterns:  # any two exclude each other
            one_property = left.matched.get(pattern, left.further)
            other_property = right.matched.get(pattern, right.further)
            pattern_properties[pattern] = self.both(one_property, other_property)
        additional_property = self.both(left.further, right.further)
        required_names = tuple(dict.fromkeys([*left.needed, *right.needed]))
        return _possible(
            Object(properties, pattern_properties, additional_property, required_names, left.size.both(right.size))
        )


def _possible(value: Object) -> Value:
    """A value as it is; `NOTHING` if it needs more properties than it may have."""
    return value if value.size.both(Count(len(value.needed))).is_possible else NOTHING


def _count(schema: Schema, suffix: str) -> Count:
    return Count(schema.get(f"min{suffix}", 0), schema.get(f"max{suffix}"))


def _constants(values: list[Any]) -> Value:
    """The values of a list of constants."""
    texts = tuple(dict.fromkeys(value for value in values if isinstance(value, str)))
    members: list[Value] = [Text(listed=texts)] if texts else []
    for value in values:
        match value:
            case None | bool():
                members.append(Words(frozenset(["null" if value is None else str(value).lower()])))
            case int() | float():
                members.append(Number(Bound.of(value), Bound.of(value), isinstance(value, int)))
            case list():
                items = tuple(_constants([item]) for item in value)
                members.append(Array(items, NOTHING, Count(len(items), len(items))))
            case dict():
                properties = {name: _constants([constant]) for name, constant in value.items()}
                members.append(Object(properties, {}, NOTHING, tuple(properties)))
    return several(*members)


def _number(schema: Schema, *, whole: bool) -> Number:
    """The numbers that a schema allows; in draft 4, `exclusiveMinimum` is a flag that makes `minimum` exclusive."""

    def bounds_of(keyword: str, exclusive_keyword: str) -> list[Bound]:
        bounds = []
        exclusive_bound = schema.get(exclusive_keyword)
        if keyword in schema:
            bounds.append(Bound.of(schema[keyword], open=exclusive_bound is True))
        if exclusive_bound is not None and not isinstance(exclusive_bound, bool):
            bounds.append(Bound.of(exclusive_bound, open=True))
        return bounds

    lower_bound = _inmost(*bounds_of("minimum", "exclusiveMinimum"), up=True)
    upper_bound = _inmost(*bounds_of("maximum", "exclusiveMaximum"), up=False)
    multiple = schema.get("multipleOf")
    exact_multiple = None if multiple is None else abs(Decimal(repr(multiple)))
    return Number(lower_bound, upper_bound, whole, exact_multiple)


def _both_numbers(left: Number, right: Number) -> Number:
    lower_bound = _inmost(left.least, right.least, up=True)
    upper_bound = _inmost(left.most, right.most, up=False)
    multiple = left.multiple if right.multiple is None else right.multiple
    return Number(lower_bound, upper_bound, left.whole or right.whole, multiple)


def _inmost(*bounds: Bound | None, up: bool) -> Bound | None:
    """The tightest of some bounds: the highest lower bound if `up`, else the lowest upper bound."""
    values = [bound.value for bound in bounds if bound]
    if not values:
        return None
    value = max(values) if up else min(values)
    is_open = any(bound.open for bound in bounds if bound and bound.value == value)
    return Bound(value, is_open)
