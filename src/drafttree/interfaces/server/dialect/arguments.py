"""Streaming readers that convert the arguments of a tool call from a family's form to JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import regex

from drafttree.constraints.marked_arguments import STYLES
from drafttree.constraints.schema_comparison import SchemaComparison, dict_entry
from drafttree.core.errors import ConfigError
from drafttree.interfaces.server.dialect.families import Arguments


class Read(NamedTuple):
    """The outcome of one reading step.

    Attributes:
        text: the next piece of the arguments, as JSON.
        used: the number of characters of the input that were consumed.
        done: whether the arguments are complete.
    """

    text: str
    used: int
    done: bool


class JsonObject:
    """Reads arguments that are a JSON object: passes its text on, up to the brace that closes it."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def read(self, text: str, *, final: bool) -> Read:
        """Read unread text up to the end of the object, or all of it."""
        for index, character in enumerate(text):
            if self._quoted:
                self._quoted = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._quoted = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if not self._depth:
                    return Read(text[: index + 1], index + 1, done=True)
        return Read(text, len(text), done=False)


BEFORE = {
    "qwen_xml": regex.compile(r"\s*+<parameter=(?P<key>[^>\n]{1,512}+)>"),
    "glm_xml": regex.compile(r"\s*+<arg_key>(?P<key>[^<]{1,512}+)</arg_key>\s*+<arg_value>"),
}
"""By kind of arguments, the pattern of what precedes the value of an argument, with its name as `key`."""


class MarkedPairs:
    """Reads arguments with marks around each name and value; they end where no further argument begins.

    A line break on either side of a value is dropped if the family writes one there. A value is read as JSON if it is
    JSON but not a string, and the schema may allow it; otherwise it is text.

    Args:
        kind: how the arguments are written.
        parameters: JSON schema of the arguments; None for any.
    """

    def __init__(self, kind: Arguments, parameters: Mapping[str, Any] | None) -> None:
        self._before = BEFORE[kind]
        self._marks = STYLES[kind]
        self._parameters = parameters or {}
        self._schemas = SchemaComparison(self._parameters)
        self._begun = False
        self._looked = 0
        self._key: str | None = None

    def read(self, text: str, *, final: bool) -> Read:
        """Read the name of the next argument with its marks, or the value of this one if it is complete."""
        if self._key is not None:
            return self._read_value(self._key, text, final=final)
        key_match = self._before.match(text, partial=True)
        if key_match is None:
            return Read("}" if self._begun else "{}", 0, done=True)
        if key_match.partial:
            return Read("", len(text) if final else 0, done=False)
        self._key = key_match["key"].strip()
        return Read("", key_match.end(), done=False)

    def _read_value(self, key: str, text: str, *, final: bool) -> Read:
        end_mark = self._marks.end
        edge = self._marks.edge
        end = text.find(end_mark, self._looked)
        if end < 0:
            self._looked = max(len(text) - len(end_mark), 0)
            return Read("", len(text) if final else 0, done=False)
        value = self._value(key, text[:end].removeprefix(edge).removesuffix(edge))
        json_member = f"{', ' if self._begun else '{'}{json.dumps(key, ensure_ascii=False)}: {value}"
        self._begun = True
        self._key = None
        self._looked = 0
        return Read(json_member, end + len(end_mark), done=False)

    def _value(self, key: str, text: str) -> str:
        """A value as JSON."""
        try:
            value = json.loads(text)
            if not isinstance(value, str) and self._allows(key, value):
                return json.dumps(value, ensure_ascii=False, allow_nan=False)
        except (ValueError, RecursionError):
            pass
        return json.dumps(text, ensure_ascii=False)

    def _allows(self, key: str, value: Any) -> bool:
        """Whether the schema of the argument may allow a value."""
        referent = self._schemas.follow_refs(self._parameters)
        parameters = referent if isinstance(referent, dict) else {}  # it may lead nowhere where it is not enforced
        schema = dict_entry(parameters, "properties").get(key, parameters.get("additionalProperties", {}))
        try:
            return not self._schemas.disjoint(schema, {"const": value})
        except ConfigError:  # it refers to itself too often to be compared
            return True


def written_arguments(kind: Arguments, arguments: str, read: Callable[[str], dict[str, Any]] = json.loads) -> str:
    """Convert arguments from JSON to the form of a family.

    Args:
        kind: how the family writes arguments.
        arguments: a JSON object, as text.
        read: parses it, if the family writes each value separately.
    """
    if kind == "json":
        return arguments
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in read(arguments).items()
    }
    if kind == "qwen_xml":
        return "\n".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items())
    return "\n".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>" for key, text in texts.items())
