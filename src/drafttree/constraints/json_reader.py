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
            raise ConfigError(f"invalid JSON schema: {location!r} refers to itself beside other keywords")
        return self.resolve(value) if isinstance(value, Reference) else value

    def both(self, one: Value, other: Value) -> Value:
        """The values that both allow."""
        if isinstance(one, Anything) or (isinstance(one, Reference) and one == other):
            return other
        if isinstance(other, Anything):
            return one
        if isinstance(one, Reference):
            return self.both(self.resolve(one), other)
        if isinstance(other, Reference):
            return self.both(one, self.resolve(other))
        if isinstance(one, Several):
            return several(*(self.both(member, other) for member in one.members))
        if isinstance(other, Several):
            return several(*(self.both(one, member) for member in other.members))
        match one, other:
            case Words(), Words():
                return Words(one.words & other.words) if one.words & other.words else NOTHING
            case Number(), Number():
                return _both_numbers(one, other)
            case Text(), Text():
                return self._both_texts(one, other)
            case Array(), Array():
                return self._both_arrays(one, other)
            case Object(), Object():
                return self._both_objects(one, other)
        return NOTHING

    def property_of(self, value: Object, name: str) -> Value:
        """The values of an object's property with a name."""
        if name in value.named:
            return value.named[name]
        candidates = (candidate for pattern, candidate in value.matched.items() if self.matching(pattern, [name]))
        return next(candidates, value.further)

    def matching(self, pattern: str, texts: Iterable[str]) -> list[str]:
        """The texts in which a pattern matches some part."""
        texts = [*texts]
        verdicts = self._matched.setdefault(pattern, {})
        if unchecked_texts := [text for text in texts if text not in verdicts]:
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
                patterns = [schema["pattern"]] if "pattern" in schema else []
                return Text((*patterns, *FORMATS.get(schema.get("format", ""), ())), _count(schema, "Length"))
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
        properties = {name: self.read(subschema) for name, subschema in dict_entry(schema, "properties").items()}
        pattern_properties = {
            pattern: self.read(subschema) for pattern, subschema in dict_entry(schema, "patternProperties").items()
        }
        for pattern, value in pattern_properties.items():
            for name in self.matching(pattern, properties):
                properties[name] = self.both(properties[name], value)
        additional_property = self.read(schema.get("additionalProperties", True))
        required_names = tuple(dict.fromkeys(required(schema)))
        return _possible(
            Object(properties, pattern_properties, additional_property, required_names, _count(schema, "Properties"))
        )

    def _both_texts(self, one: Text, other: Text) -> Value:
        patterns = tuple(dict.fromkeys([*one.patterns, *other.patterns]))
        length = one.length.both(other.length)
        if one.listed is None and other.listed is None:
            return Text(patterns, length)
        texts = [text for text in (one.listed or other.listed or ()) if len(text) in length]
        if one.listed is not None and other.listed is not None:
            other_texts = {*other.listed}
            texts = [text for text in texts if text in other_texts]
        for pattern in patterns:
            texts = self.matching(pattern, texts)
        return Text(listed=tuple(texts)) if texts else NOTHING

    def _both_arrays(self, one: Array, other: Array) -> Array:
        count = max(len(one.first), len(other.first))
        items = [[*array.first, *[array.further] * (count - len(array.first))] for array in (one, other)]
        first_items = tuple(map(self.both, *items))
        return Array(first_items, self.both(one.further, other.further), one.length.both(other.length))

    def _both_objects(self, one: Object, other: Object) -> Value:
        names = dict.fromkeys([*one.named, *other.named])
        patterns = dict.fromkeys([*one.matched, *other.matched])
        properties = {name: self.both(self.property_of(one, name), self.property_of(other, name)) for name in names}
        pattern_properties = {}
        for pattern in patterns:  # any two exclude each other
            values = [value.matched.get(pattern, value.further) for value in (one, other)]
            pattern_properties[pattern] = self.both(*values)
        additional_property = self.both(one.further, other.further)
        required_names = tuple(dict.fromkeys([*one.needed, *other.needed]))
        return _possible(
            Object(properties, pattern_properties, additional_property, required_names, one.size.both(other.size))
        )


def _possible(value: Object) -> Value:
    """A value as it is; `NOTHING` if it needs more properties than it may have."""
    return value if value.size.both(Count(len(value.needed))).is_possible else NOTHING


def _count(schema: Schema, what: str) -> Count:
    return Count(schema.get(f"min{what}", 0), schema.get(f"max{what}"))


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

    def bound(inside: str, outside: str) -> list[Bound]:
        bounds = []
        exclusive_bound = schema.get(outside)
        if inside in schema:
            bounds.append(Bound.of(schema[inside], open=exclusive_bound is True))
        if exclusive_bound is not None and not isinstance(exclusive_bound, bool):
            bounds.append(Bound.of(exclusive_bound, open=True))
        return bounds

    multiple = schema.get("multipleOf")
    lower_bounds, upper_bounds = bound("minimum", "exclusiveMinimum"), bound("maximum", "exclusiveMaximum")
    exact_multiple = None if multiple is None else abs(Decimal(repr(multiple)))
    return Number(_inmost(*lower_bounds, up=True), _inmost(*upper_bounds, up=False), whole, exact_multiple)


def _both_numbers(one: Number, other: Number) -> Number:
    lower_bound, upper_bound = _inmost(one.least, other.least, up=True), _inmost(one.most, other.most, up=False)
    return Number(
        lower_bound, upper_bound, one.whole or other.whole, one.multiple if other.multiple is None else other.multiple
    )


def _inmost(*bounds: Bound | None, up: bool) -> Bound | None:
    """The tightest of some bounds: the highest lower bound if `up`, else the lowest upper bound."""
    values = [bound.value for bound in bounds if bound]
    if not values:
        return None
    value = max(values) if up else min(values)
    return Bound(value, any(bound.open for bound in bounds if bound and bound.value == value))
