"""Grammars of arguments that stand between marks, as Qwen3-Coder and GLM write them.

Texts stand there without quotes, all else as JSON. What stands between a value and its marks is fixed, since who reads
the text could not tell it from white space of the value.
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
    """Expressions of what stands before the name of the first argument, of a further one, and before a value.

    The text between two arguments is no expression of its own: it may begin as the text behind the last one does.

    Attributes:
        end: the text behind a value.
        edge: what stands between the value and the marks.
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
"""By xgrammar's name of a style."""


def marked_arguments(style: str, schema: Any, rules: Rules) -> str:
    """The expression of the arguments of a schema, whose rules are added to others.

    Raises:
        ConfigError: the style is unknown, or the schema is invalid or cannot be enforced in it; the message says why.
    """
    if style not in STYLES:
        raise ConfigError(f"invalid structural tag: the style {style!r} is not supported; known: {', '.join(STYLES)}")
    value, reader = read_schema(schema)
    return _Arguments(STYLES[style], reader, rules).expression(value)


class _Arguments:
    """The arguments of one call."""

    def __init__(self, marks: Marks, reader: ValueReader, rules: Rules) -> None:
        self._marks = marks
        self._reader = reader
        self._rules = rules
        self._json = JsonRules(reader, rules)

    def expression(self, value: Value) -> str:
        value = self._reader.resolve(value) if isinstance(value, Reference) else value
        if not isinstance(value, Object) or value.matched or not value.size.is_free:
            raise ConfigError(
                "invalid JSON schema: between marks, arguments are enforced of an object with 'properties', 'required' "
                "and 'additionalProperties' alone; leave out its other keywords"
            )
        marks = self._marks
        names = dict.fromkeys([*value.named, *value.needed])
        property_values = {name: self._reader.property_of(value, name) for name in names}
        arguments = further_arguments = EMPTY
        if further_argument := self._pair(self._further_name([*property_values]), value.further):
            further_arguments = self._rules.add(f"({marks.further} {further_argument})*")
            arguments = f"({marks.name} {further_argument} {further_arguments})?"
        for name, property_value in reversed(property_values.items()):
            if argument := self._pair(literal(name), property_value):
                optional = "" if name in value.needed else "?"
                arguments = self._rules.add(
                    f"{marks.name} {argument} {further_arguments}" + f" | {arguments}" * bool(optional)
                )
                further_arguments = self._rules.add(f"({marks.further} {argument}){optional} {further_arguments}")
        return arguments

    def _further_name(self, named: list[str]) -> str:
        """The expression of the name of an argument that is none of some."""
        exclusion = f" & ~({' | '.join(map(literal, named))})" if named else ""
        return self._rules.add(rf"/[^<>\n]+/{exclusion}", plain=True)

    def _pair(self, name: str, value: Value) -> str:
        """The rule of one argument, without the mark before its name; "" where it can have no value."""
        values = " | ".join(self._values(value))
        return self._rules.add(f"{name} {self._marks.value} ({values})") if values else ""

    def _values(self, value: Value) -> Iterator[str]:
        """Expressions of the texts of a value with what stands behind them."""
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
        """The expression of the texts of a value with what stands behind them, as one automaton."""
        expressions = [texts_with("JSON schema", pattern, self._rules, as_json=False) for pattern in value.patterns]
        if not value.length.is_free:
            expressions.append(repeated("/(?s:.)/", value.length.least, value.length.most))
        automata = [self._rules.add(texts, plain=True) for texts in (*expressions, without(self._marks.end))]
        return self._rules.add(f"{self._rules.add(' & '.join(automata), plain=True)} {literal(self._end)}", plain=True)

    @property
    def _end(self) -> str:
        return self._marks.edge + self._marks.end
