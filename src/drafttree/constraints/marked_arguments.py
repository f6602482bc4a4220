"""Grammars of tool arguments that are written between marks, as by Qwen3-Coder and GLM.

Strings are written without quotes, other values as JSON. The text between a value and its marks is fixed, because a
reader could not tell variable white space there from that of the value.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from drafttree.constraints.json_reader import ValueReader
from drafttree.constraints.json_rules import JsonRules, is_possible
from drafttree.constraints.json_schema import read_schema
from drafttree.constraints.json_values import Anything, Object, Reference, Several, Text, Value
from drafttree.constraints.lark import EMPTY, Rules, literal, repeated, without
from drafttree.constraints.patterns import texts_with
from drafttree.core.errors import ConfigError

SPACE = r"/[ \n\r\t]/?"


class Marks(NamedTuple):
    """The marks of a style.

    The text between two arguments is part of `further`, since it may begin like the text after the last argument.

    Attributes:
        name: expression of what precedes the name of the first argument.
        further: expression of what precedes the name of a later argument.
        value: expression of what separates name and value.
        end: the text after a value.
        edge: the text between `end` and the value, and in `value` before it.
    """

    name: str
    further: str
    value: str
    end: str
    edge: str = ""


STYLES = {
    "qwen_xml": Marks('"<parameter="', r'"\n<parameter="', r'">\n"', "</parameter>", edge="\n"),
    "glm_xml": Marks('"<arg_key>"', r"/[ \n\r\t]?<arg_key>/", f'"</arg_key>" {SPACE} "<arg_value>"', "</arg_value>"),
}
"""Marks by xgrammar's name of the style."""


def marked_arguments(style: str, schema: Any, rules: Rules) -> str:
    """The expression of the arguments that conform to a schema; its rules are added to `rules`.

    Raises:
        ConfigError: the style is unknown, or the schema is invalid or cannot be enforced in this style.
    """
    if style not in STYLES:
        raise ConfigError(f"invalid structural tag: the style {style!r} is not supported; known: {', '.join(STYLES)}")
    value, reader = read_schema(schema)
    return _Arguments(STYLES[style], reader, rules).expression(value)


class _Arguments:
    """Writes the expression of the arguments of one call."""

    def __init__(self, marks: Marks, reader: ValueReader, rules: Rules) -> None:
        self._marks = marks
        self._reader = reader
        self._rules = rules
        self._json = JsonRules(reader, rules)

    def expression(self, value: Value) -> str:
        value = self._reader.resolve(value) if isinstance(value, Reference) else value
        if not isinstance(value, Object) or value.matched or not value.size.is_free:
            raise ConfigError(
                "invalid JSON schema: arguments between marks are enforced only if their schema has no keywords but "
                "'properties', 'required' and 'additionalProperties'; leave out the others"
            )
        marks = self._marks
        names = dict.fromkeys([*value.named, *value.needed])
        property_values = {name: self._reader.property_of(value, name) for name in names}
        arguments = EMPTY
        further_arguments = EMPTY
        if further_argument := self._pair(self._further_name([*property_values]), value.further):
            further_arguments = self._rules.add(f"({marks.further} {further_argument})*")
            arguments = f"({marks.name} {further_argument} {further_arguments})?"
        for name, property_value in reversed(property_values.items()):
            if argument := self._pair(literal(name), property_value):
                is_required = name in value.needed
                first_argument = f"{marks.name} {argument} {further_arguments}"
                arguments = self._rules.add(first_argument if is_required else f"{first_argument} | {arguments}")
                further_argument = f"({marks.further} {argument})" if is_required else f"({marks.further} {argument})?"
                further_arguments = self._rules.add(f"{further_argument} {further_arguments}")
        return arguments

    def _further_name(self, names: list[str]) -> str:
        """The expression of the name of an argument, except the names in `names`."""
        exclusion = f" & ~({' | '.join(map(literal, names))})" if names else ""
        return self._rules.add(rf"/[^<>\n]+/{exclusion}", plain=True)

    def _pair(self, name: str, value: Value) -> str:
        """The rule of one argument, without the mark before its name; "" if it has no possible value."""
        values = " | ".join(self._values(value))
        return self._rules.add(f"{name} {self._marks.value} ({values})") if values else ""

    def _values(self, value: Value) -> Iterator[str]:
        """Yield expressions whose union is the texts of a value, each with the end mark."""
        match value:
            case Reference():
                yield from self._values(self._reader.resolve(value))
            case Several(members):
                for member in members:
                    yield from self._values(member)
            case Anything():
                yield self._text(Text())
            case Text(listed=tuple() as listed):
                yield from (literal(text + self._end) for text in listed)
            case Text():
                if is_possible(value):
                    yield self._text(value)
            case _:
                if texts := self._json.expression(value):
                    yield f"{texts} {literal(self._end)}"

    def _text(self, value: Text) -> str:
        """The expression of the texts of a string with the end mark, as one automaton."""
        expressions = [texts_with("JSON schema", pattern, self._rules, as_json=False) for pattern in value.patterns]
        if not value.length.is_free:
            expressions.append(repeated("/(?s:.)/", value.length.least, value.length.most))
        expressions.append(without(self._marks.end))
        automata = [self._rules.add(texts, plain=True) for texts in expressions]
        texts = self._rules.add(" & ".join(automata), plain=True)
        return self._rules.add(f"{texts} {literal(self._end)}", plain=True)

    @property
    def _end(self) -> str:
        return self._marks.edge + self._marks.end
