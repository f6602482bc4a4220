"""Writes grammar rules for the JSON texts of values, in all spellings that JSON allows.

Names of properties and constants have only one spelling of letters, digits and most signs, so that they can be drafted
without a drafter. Signs that some JSON writers escape, and all characters beyond ASCII, may have any spelling.
"""

import functools
from decimal import Decimal
from fractions import Fraction
from itertools import groupby, product
from math import ceil, floor
from typing import NamedTuple

from drafttree.constraints.characters import EVERY, json_spelling, json_spellings
from drafttree.constraints.json_numbers import ANY_NUMBER, Bound, inward, number_pattern
from drafttree.constraints.json_reader import ValueReader
from drafttree.constraints.json_values import (
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
)
from drafttree.constraints.lark import EMPTY, Rules, has_texts, json_texts, literal, repeated
from drafttree.constraints.patterns import texts_with
from drafttree.core.errors import ConfigError

PLAIN = frozenset(map(chr, range(0x20, 0x7F))) - set("\"\\/<>&'+`")
"""Characters of names and constants that have only one spelling."""
SIGNS = {"{": "{", "}": "}", "[": "[", "]": "]", ",": ", ", ":": ": "}
"""The signs between elements, as `json.dumps` writes them."""
SPACE = r"[ \n\r\t]*"
QUOTE = literal('"')


class _Property(NamedTuple):
    """A property that a schema names.

    Attributes:
        texts: the expression of its name and value.
        is_required: whether each object has it.
    """

    texts: str
    is_required: bool


class JsonRules:
    """Writes rules for the values of one document.

    Args:
        reader: the reader of the values.
        rules: the grammar's rules, to which this adds.
        any_whitespace: whether any white space is allowed between elements; if not, only that of `json.dumps`.
    """

    def __init__(self, reader: ValueReader, rules: Rules, *, any_whitespace: bool = False) -> None:
        self._reader = reader
        self._rules = rules
        self._any_whitespace = any_whitespace
        self._references: dict[str, str] = {}
        self._pending: list[Reference] = []

    def expression(self, value: Value) -> str:
        """The expression of the texts of a value; "" if there are none.

        Raises:
            ConfigError: a reference leads to a schema to which no value conforms.
        """
        expression = self._expression(value)
        while self._pending:
            reference = self._pending.pop()
            if not (texts := self._expression(self._reader.resolve(reference))):
                raise ConfigError(f"invalid JSON schema: no value conforms to {reference.location}")
            self._rules.define(self._references[reference.location], texts)
        return expression

    def _expression(self, value: Value) -> str:
        match value:
            case Anything():
                return self._anything()
            case Reference(location):
                if location not in self._references:
                    self._references[location] = self._rules.name()
                    self._pending.append(value)
                return self._references[location]
            case Several(members):
                automata = [self._automaton(member) for member in members if _is_automaton(member)]
                expressions = [self._expression(member) for member in members if not _is_automaton(member)]
                merged_terminal = self._terminal(" | ".join(filter(None, automata)))
                return self._rule(" | ".join(filter(None, [merged_terminal, *expressions])))
            case Array():
                return self._array(value)
            case Object():
                return self._object(value)
            case Number(multiple=Decimal()):
                return self._multiples(value)
        return self._terminal(self._automaton(value))

    def _rule(self, expression: str) -> str:
        return self._rules.add(expression) if expression else ""

    def _terminal(self, expression: str) -> str:
        return self._rules.add(expression, plain=True) if expression else ""

    def _sign(self, sign: str) -> str:
        if not self._any_whitespace:
            return literal(SIGNS[sign])
        space_before = "" if sign in "{[" else SPACE
        space_after = "" if sign in "}]" else SPACE
        return rf"/{space_before}\{sign}{space_after}/"

    def _within(self, begin: str, texts: str, end: str) -> str:
        return f"{self._sign(begin)} {texts} {self._sign(end)}"

    def _automaton(self, value: Value) -> str:
        """The expression, for an automaton, of the texts of a value."""
        match value:
            case Words(words):
                return " | ".join(map(literal, sorted(words)))
            case Number(least, most, whole):
                pattern = number_pattern(least, most, whole=whole)
                return f"/{pattern}/" if pattern else ""
            case Text(listed=tuple() as texts):
                return " | ".join(map(_fixed, texts))
            case Text():
                return text_expression(value, self._rules) if is_possible(value) else ""
        raise TypeError(value)

    def _anything(self) -> str:
        string = self._terminal(text_expression(Text(), self._rules))
        scalar = self._terminal(f'"null" | "true" | "false" | /{ANY_NUMBER}/ | {string}')

        def alternatives(anything: str) -> str:
            items = self._items(anything, Count(), begun=False)
            properties = self._items(f"{string} {self._sign(':')} {anything}", Count(), begun=False)
            return f"{scalar} | {self._within('[', items, ']')} | {self._within('{', properties, '}')}"

        return self._rules.circular(f"anything, {self._sign(',')}", alternatives)

    def _multiples(self, value: Number) -> str:
        """The expression of the multiples of a number, made by llguidance.

        Its multiples may have any number of decimals, but its bounds only their own. So bounds are moved between two
        multiples.
        """
        step = Fraction(value.multiple or 0)
        step = Fraction(step.numerator) if value.whole else step
        least_multiple = value.least and _multiple_inside(value.least, step, up=True)
        largest_multiple = value.most and _multiple_inside(value.most, step, up=False)
        if least_multiple is not None and largest_multiple is not None and least_multiple > largest_multiple:
            return ""
        bounds = {}
        if least_multiple is not None:
            # Zero stays the bound: below it, llguidance would allow -0.
            lower_bound = least_multiple - step / 2 if least_multiple else least_multiple
            bounds["minimum"] = inward(lower_bound, up=True)
        if largest_multiple is not None:
            bounds["maximum"] = inward(largest_multiple + step / 2, up=False)
        type_name = "integer" if value.whole else "number"
        return self._rule(json_texts({"type": type_name, "multipleOf": float(step), **bounds}))

    def _items(self, item: str, count: Count, *, begun: bool) -> str:
        """The expression of items with commas between them, and before the first one if `begun`."""
        if begun:
            return self._rule(repeated(f"{self._sign(',')} {item}", count.least, count.most))
        if count.most == 0:
            return EMPTY
        return self._rule(f"({item} {self._items(item, count.beyond(1), begun=True)}){_optional(not count.least)}")

    def _array(self, value: Array) -> str:
        first_items = [self._expression(item) for item in value.first[: value.length.most]]
        max_length = value.length.most
        if "" in first_items:
            first_items = first_items[: first_items.index("")]
            max_length = len(first_items)
        further_item = self._expression(value.further) if max_length is None or max_length > len(first_items) else ""
        length = Count(value.length.least, max_length if further_item else len(first_items))
        if not length.is_possible:
            return ""
        items = EMPTY
        if further_item:
            items = self._items(further_item, length.beyond(len(first_items)), begun=bool(first_items))
        for index in reversed(range(len(first_items))):
            comma = self._sign(",") if index else ""
            items = self._rule(f"({comma} {first_items[index]} {items}){_optional(index >= length.least)}")
        return self._rule(self._within("[", items, "]"))

    def _object(self, value: Object) -> str:
        property_values = {name: self._reader.property_of(value, name) for name in (*value.named, *value.needed)}
        properties = list[_Property]()
        for name, property_value in property_values.items():
            is_required = name in value.needed
            if texts := self._expression(property_value):
                # The name without the colon: the longer text would hide other names that are possible in its place.
                name_terminal = self._terminal(_fixed(name))
                properties.append(_Property(f"{name_terminal} {self._sign(':')} {texts}", is_required))
            elif is_required:
                return ""
        further_property = self._further(value, [*property_values])
        chain = self._chain(properties, further_property, value.size.beyond(len(value.needed)))
        return self._rule(self._within("{", chain, "}")) if chain else ""

    def _chain(self, properties: list[_Property], further_property: str, count: Count) -> str:
        """The expression of properties in their order, followed by further ones; "" if there is no such object.

        Args:
            properties: the named properties.
            further_property: the expression of a further property; "" for none.
            count: the number of properties that are not required. If `properties` has some, llguidance's reader of
                schemas allows only counts of one, so there are few rules.
        """
        max_optional = 0
        if not all(named_property.is_required for named_property in properties):
            max_optional = count.least if count.most is None else count.most
        # Expressions of the rest, by whether a property precedes it, and by the number of optional ones before.
        tails = {}
        for has_previous, optional_count in product((False, True), range(max_optional + 1)):
            tails[has_previous, optional_count] = self._tail(
                further_property, count.beyond(optional_count), begun=has_previous
            )
        for texts, is_required in reversed(properties):
            longer_tails = {}
            for has_previous, optional_count in tails:
                next_count = optional_count if is_required else optional_count + 1
                if count.most is None:
                    next_count = min(next_count, max_optional)
                element = f"{self._sign(',')} {texts}" if has_previous else texts
                tail = tails.get((True, next_count), "")
                tail_without = "" if is_required else tails[has_previous, optional_count]
                if tail and tail == tail_without:
                    longer_tails[has_previous, optional_count] = self._rule(f"({element})? {tail}")
                else:
                    tail_with = f"{element} {tail}" if tail else ""
                    alternatives = filter(None, [tail_with, tail_without])
                    longer_tails[has_previous, optional_count] = self._rule(" | ".join(alternatives))
            tails = longer_tails
        return tails[False, 0]

    def _tail(self, further_property: str, count: Count, *, begun: bool) -> str:
        """The expression of further properties, as `_items`; "" if there are none but some are needed."""
        if further_property:
            return self._items(further_property, count, begun=begun)
        return "" if count.least else EMPTY

    def _further(self, value: Object, names: list[str]) -> str:
        """The expression of a property whose name is not among `names`; "" if there may be none."""
        if not value.matched and value.further == Several():
            return ""
        name_terminals = {name: self._terminal(f'/"{json_spelling(name)}"/') for name in names}
        pattern_terminals = dict[str, str]()
        for pattern in value.matched:
            pattern_terminals[pattern] = self._terminal(text_expression(Text((pattern,)), self._rules))
        alternatives = list[str]()

        def add(name_terminal: str, excluded_terminals: list[str], property_value: Value) -> None:
            name = self._without(name_terminal, excluded_terminals)
            if texts := self._expression(property_value):
                alternatives.append(f"{name} {self._sign(':')} {texts}")

        for pattern, property_value in value.matched.items():
            matching_names = self._reader.matching(pattern, names)
            add(pattern_terminals[pattern], [name_terminals[name] for name in matching_names], property_value)
        string = self._terminal(text_expression(Text(), self._rules))
        add(string, [*name_terminals.values(), *pattern_terminals.values()], value.further)
        return self._rule(" | ".join(alternatives))

    def _without(self, texts: str, excluded: list[str]) -> str:
        """The automaton of some texts without the excluded ones."""
        return self._terminal(f"{texts} & ~({' | '.join(excluded)})") if excluded else texts


@functools.lru_cache(maxsize=256)
def is_possible(value: Text) -> bool:
    """Whether any string matches all patterns and the length."""
    if len(value.patterns) + (not value.length.is_free) < 2 or not value.length.is_possible:
        return value.length.is_possible
    rules = Rules()
    return has_texts(rules.grammar(rules.add(text_expression(value, rules), plain=True)))


def text_expression(value: Text, rules: Rules) -> str:
    """The expression, for an automaton, of the strings that match patterns and a length."""
    texts = list[str]()
    for pattern in value.patterns:
        inner_texts = texts_with("JSON schema", pattern, rules, as_json=True)
        texts.append(f"{QUOTE} {inner_texts} {QUOTE}")
    if not texts or not value.length.is_free:
        character = rules.add(f"/{json_spellings(EVERY)}/", plain=True)
        texts.append(f"{QUOTE} {repeated(character, value.length.least, value.length.most)} {QUOTE}")
    return texts[0] if len(texts) == 1 else " & ".join(rules.add(expression, plain=True) for expression in texts)


def _fixed(text: str) -> str:
    """The expression, for an automaton, of a name or constant, in quotes."""
    expressions = [QUOTE]
    for is_plain, characters in groupby(text, PLAIN.__contains__):
        run = "".join(characters)
        expressions.append(literal(run) if is_plain else f"/{json_spelling(run)}/")
    return " ".join([*expressions, QUOTE])


def _optional(optional: bool) -> str:
    return "?" if optional else ""


def _is_automaton(value: Value) -> bool:
    return isinstance(value, Words | Text) or (isinstance(value, Number) and value.multiple is None)


def _multiple_inside(bound: Bound, step: Fraction, *, up: bool) -> Fraction:
    """The multiple of `step` nearest to a bound, on its inner side."""
    quotient = Fraction(bound.value) / step
    if bound.open:
        return step * (floor(quotient) + 1 if up else ceil(quotient) - 1)
    return step * (ceil(quotient) if up else floor(quotient))
