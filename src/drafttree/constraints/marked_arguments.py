"""Grammars of arguments that stand between marks, as Qwen3-Coder and GLM write them.

Texts stand there without quotes, all else as JSON. What stands between a value and its marks is fixed, since who reads
the text could not tell it from white space of the value.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from drafttree.constraints.json_schema import ANNOTATIONS, load_schema, prepare_schema, schema_texts
from drafttree.constraints.lark import ANY_TEXT, Rules, literal, without
from drafttree.constraints.patterns import whole_pattern
from drafttree.constraints.schema_comparison import Schema, SchemaComparison, as_list, dict_entry, required
from drafttree.core.errors import ConfigError

SPACE = r"/[ \n\r\t]/?"
JSON_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
RAW_FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "uuid": r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#@!$&'()*+,;=%-]+",
}
RAW_FORMATS["date-time"] = f"{RAW_FORMATS['date']}[Tt]{RAW_FORMATS['time']}"
"""Patterns of formats without quotes; each matches texts of the format, and nearly all."""


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
    schema_texts(schema)  # says what is wrong, and where
    made = _Arguments(STYLES[style], prepare_schema(load_schema(schema)), rules)
    return made.expression()


class _Arguments:
    """The arguments of one call."""

    def __init__(self, marks: Marks, root: Any, rules: Rules) -> None:
        self._marks, self._root, self._rules = marks, root, rules
        self._schemas = SchemaComparison(root)

    def expression(self) -> str:
        schema = self._schemas.follow_refs(self._root)
        known = ANNOTATIONS | {"properties", "required", "additionalProperties"}
        if not isinstance(schema, dict):
            raise _refused("a schema without properties")
        if other := sorted(schema.keys() - known):
            raise _refused(repr(other[0]))
        properties, needed, marks = dict_entry(schema, "properties"), {*required(schema)}, self._marks
        more = schema.get("additionalProperties", True)
        first = rest = '""'
        if more is not False:
            pair = self._pair(r"/[^<>\n]+/", more)
            rest = self._rules.add(f"({marks.further} {pair})*")
            first = f"({marks.name} {pair} {rest})?"
        for name, value in reversed({**properties, **dict.fromkeys(needed - properties.keys(), more)}.items()):
            if value is False and name not in needed:
                continue
            pair = self._pair(literal(name), value)
            optional = "" if name in needed else "?"
            first = self._rules.add(f"{marks.name} {pair} {rest}" + ("" if name in needed else f" | {first}"))
            rest = self._rules.add(f"({marks.further} {pair}){optional} {rest}")
        return first

    def _pair(self, name: str, value: Any) -> str:
        """The rule of one argument, without the mark before its name."""
        values = " | ".join(self._values(value))
        return self._rules.add(f"{name} {self._marks.value} ({values})")

    def _values(self, schema: Any) -> Iterator[str]:
        """Expressions of the values of a schema with what stands behind them."""
        found = self._schemas.follow_refs(schema)
        schema = found if isinstance(found, dict) else {}
        keywords = {*schema} - ANNOTATIONS
        if keywords == {"anyOf"}:
            for each in schema["anyOf"]:
                yield from self._values(each)
            return
        if keywords & {"const", "enum"}:
            if keywords - {"const", "enum"}:
                raise _refused(min(keywords - {"const", "enum"}))
            for each in [schema["const"]] if "const" in schema else schema["enum"]:
                text = each if isinstance(each, str) else json.dumps(each, ensure_ascii=False)
                yield literal(text + self._end)
            return
        types = as_list(schema.get("type", [*JSON_TYPES]))
        if "string" in types:
            yield self._text(schema)
        others = [each for each in types if each != "string"]
        if others and (keywords or len(types) < len(JSON_TYPES)):
            defined = {name: self._root[name] for name in ("$defs", "definitions") if name in self._root}
            yield f"{schema_texts({**defined, **schema, 'type': others})} {literal(self._end)}"

    def _text(self, schema: Schema) -> str:
        """The expression of the texts of a schema with what stands behind them, as one automaton."""
        patterns = [schema.get("pattern"), *(each.get("pattern") for each in as_list(schema.get("allOf", [])))]
        wanted = [f"/{whole_pattern(each)}/" for each in patterns if each is not None]
        if schema.get("format") is not None:
            if schema["format"] not in RAW_FORMATS:
                raise _refused(f"format {schema['format']!r}")
            wanted.append(f"/{RAW_FORMATS[schema['format']].replace('/', chr(92) + '/')}/")
        if "minLength" in schema or "maxLength" in schema:
            wanted.append(f"/{ANY_TEXT[:-1]}{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}/")
        text = self._rules.add(" & ".join([*wanted, without(self._marks.end)]), plain=True)
        return self._rules.add(f"{text} {literal(self._end)}", plain=True)

    @property
    def _end(self) -> str:
        return self._marks.edge + self._marks.end


def _refused(part: str) -> ConfigError:
    return ConfigError(f"invalid JSON schema: {part} is not enforced in arguments between marks; leave it out")
