"""Writes the JSON texts of values as rules, in the spellings that JSON allows.

What is fixed, which are the names of properties and constants, has one spelling of its letters, digits and most signs,
so that it can be drafted without a drafter. Signs that some writers of JSON escape, and all beyond ASCII, may have any
spelling there too.
"""

import functools
from decimal import Decimal
from fractions import Fraction
from itertools import groupby, product
from math import ceil, floor

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
"""The characters of fixed texts that are written as they are."""
SIGNS = {"{": "{", "}": "}", "[": "[", "]": "]", ",": ", ", ":": ": "}
"""The signs between elements, as `json.dumps` writes them."""
SPACE = r"[ \n\r\t]*"
QUOTE = literal('"')


class JsonRules:
    """Writes the values of one document.

    Args:
        reader: what they were read by.
        rules: they are added to.
        any_whitespace: whether any white space may stand between elements, else only that of `json.dumps`.
    """

    def __init__(self, reader: ValueReader, rules: Rules, *, any_whitespace: bool = False) -> None:
        self._reader, self._rules, self._any_whitespace = reader, rules, any_whitespace
        self._references: dict[str, str] = {}
        self._pending: list[Reference] = []

    def expression(self, value: Value) -> str:
        """The expression of the texts of a value; "" where there is none.

        Raises:
            ConfigError: a reference in it leads to a schema that nothing conforms to.
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
                others = [self._expression(member) for member in members if not _is_automaton(member)]
                merged = self._terminal(" | ".join(filter(None, automata)))
                return self._rule(" | ".join(filter(None, [merged, *others])))
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
        before, after = SPACE * (sign not in "{["), SPACE * (sign not in "}]")
        return rf"/{before}\{sign}{after}/"

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
        """The expression of the multiples of a number, which llguidance writes.

        It writes all digits that a multiple may have, but bounds with theirs alone. So bounds lie between multiples.
        """
        step = Fraction(value.multiple or 0)
        step = Fraction(step.numerator) if value.whole else step
        least = value.least and _multiple_inside(value.least, step, up=True)
        most = value.most and _multiple_inside(value.most, step, up=False)
        if least is not None and most is not None and least > most:
            return ""
        bounds = {}
        if least is not None:
            bounds["minimum"] = inward(least - step / 2 if least else least, up=True)  # -0 is no multiple above zero
        if most is not None:
            bounds["maximum"] = inward(most + step / 2, up=False)
        numbers = "integer" if value.whole else "number"
        return self._rule(json_texts({"type": numbers, "multipleOf": float(step), **bounds}))

    def _items(self, item: str, count: Count, *, begun: bool) -> str:
        """The expression of so many items with commas between them, and before them where others have begun."""
        if begun:
            return self._rule(repeated(f"{self._sign(',')} {item}", count.least, count.most))
        if count.most == 0:
            return EMPTY
        return self._rule(f"({item} {self._items(item, count.beyond(1), begun=True)}){_optional(not count.least)}")

    def _array(self, value: Array) -> str:
        first, most = [self._expression(item) for item in value.first[: value.length.most]], value.length.most
        if "" in first:
            first = first[: first.index("")]
            most = len(first)
        further = self._expression(value.further) if most is None or most > len(first) else ""
        length = Count(value.length.least, most if further else len(first))
        if not length.is_possible:
            return ""
        items = self._items(further, length.beyond(len(first)), begun=bool(first)) if further else EMPTY
        for index in reversed(range(len(first))):
            comma = self._sign(",") if index else ""
            items = self._rule(f"({comma} {first[index]} {items}){_optional(index >= length.least)}")
        return self._rule(self._within("[", items, "]"))

    def _object(self, value: Object) -> str:
        named = {name: self._reader.property_of(value, name) for name in (*value.named, *value.needed)}
        properties = []
        for name, below in named.items():
            if texts := self._expression(below):
                # With the colon it would take more text than the other names that it may stand beside, and hide them.
                properties.append((f"{self._terminal(_fixed(name))} {self._sign(':')} {texts}", name in value.needed))
            elif name in value.needed:
                return ""
        further = self._further(value, [*named])
        chain = self._chain(properties, further, value.size.beyond(len(value.needed)))
        return self._rule(self._within("{", chain, "}")) if chain else ""

    def _chain(self, properties: list[tuple[str, bool]], further: str, count: Count) -> str:
        """The expression of properties in their order, and of further ones behind them; "" where there is none.

        Args:
            properties: the expression of each, and whether it must be there.
            further: the expression of a further one, "" for none.
            count: how many there may be of those that need not be there. Where some of them are named, llguidance's own
                reader refuses all counts but of one, so there are few rules.
        """
        counted = (count.least if count.most is None else count.most) if not all(need for _, need in properties) else 0
        # What may follow, by whether a property stands before it, and by how many that need not be there.
        follow = {}
        for begun, before in product((False, True), range(counted + 1)):
            left = count.beyond(before)
            follow[begun, before] = self._items(further, left, begun=begun) if further else "" if left.least else EMPTY
        for texts, need in reversed(properties):
            longer = {}
            for begun, before in follow:
                after = before if need else before + 1 if count.most is not None else min(before + 1, counted)
                texts_first = f"{self._sign(',')} {texts}" if begun else texts
                written, without = follow.get((True, after), ""), "" if need else follow[begun, before]
                if written and written == without:
                    longer[begun, before] = self._rule(f"({texts_first})? {written}")
                else:
                    alternatives = [f"{texts_first} {written}"] * bool(written) + [without] * bool(without)
                    longer[begun, before] = self._rule(" | ".join(alternatives))
            follow = longer
        return follow[False, 0]

    def _further(self, value: Object, names: list[str]) -> str:
        """The expression of a property whose name is none of some; "" where there is none."""
        if not value.matched and value.further == Several():
            return ""
        taken = {name: self._terminal(f'/"{json_spelling(name)}"/') for name in names}
        matched = {pattern: self._terminal(text_expression(Text((pattern,)), self._rules)) for pattern in value.matched}
        pairs = []
        for pattern, below in value.matched.items():
            excluded = [taken[name] for name in self._reader.matching(pattern, names)]
            pairs.append((self._without(matched[pattern], excluded), self._expression(below)))
        string = self._terminal(text_expression(Text(), self._rules))
        pairs.append((self._without(string, [*taken.values(), *matched.values()]), self._expression(value.further)))
        return self._rule(" | ".join(f"{name} {self._sign(':')} {texts}" for name, texts in pairs if texts))

    def _without(self, texts: str, excluded: list[str]) -> str:
        """The automaton of some texts that others are not among."""
        return self._terminal(f"{texts} & ~({' | '.join(excluded)})") if excluded else texts


@functools.lru_cache(maxsize=256)
def is_possible(value: Text) -> bool:
    """Whether a string can conform to all that is said of one."""
    if len(value.patterns) + (not value.length.is_free) < 2 or not value.length.is_possible:
        return value.length.is_possible
    rules = Rules()
    return has_texts(rules.grammar(rules.add(text_expression(value, rules), plain=True)))


def text_expression(value: Text, rules: Rules) -> str:
    """The expression, for an automaton, of the strings that conform to patterns and a length."""
    matched = [texts_with("JSON schema", pattern, rules, as_json=True) for pattern in value.patterns]
    texts = [f"{QUOTE} {expression} {QUOTE}" for expression in matched]
    if not texts or not value.length.is_free:
        character = rules.add(f"/{json_spellings(EVERY)}/", plain=True)
        texts.append(f"{QUOTE} {repeated(character, value.length.least, value.length.most)} {QUOTE}")
    return texts[0] if len(texts) == 1 else " & ".join(rules.add(expression, plain=True) for expression in texts)


def _fixed(text: str) -> str:
    """The expression, for an automaton, of a text that is fixed, in quotes."""
    runs = [(plain, "".join(run)) for plain, run in groupby(text, PLAIN.__contains__)]
    return " ".join([QUOTE, *(literal(run) if plain else f"/{json_spelling(run)}/" for plain, run in runs), QUOTE])


def _optional(optional: bool) -> str:
    return "?" if optional else ""


def _is_automaton(value: Value) -> bool:
    return isinstance(value, Words | Text) or (isinstance(value, Number) and value.multiple is None)


def _multiple_inside(bound: Bound, step: Fraction, *, up: bool) -> Fraction:
    """The multiple of a number that is the nearest inside a bound."""
    times = Fraction(bound.value) / step
    if bound.open:
        return step * (floor(times) + 1 if up else ceil(times) - 1)
    return step * (ceil(times) if up else floor(times))
