"""Streaming readers that convert the arguments of a tool call from a family's form to JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import regex

from drafttree.constraints.marked_arguments import STYLES
from drafttree.constraints.schema_comparison import SchemaComparison, dict_entry
from drafttree.core.errors import ConfigError
from drafttree.interfaces.server.dialect.families import Arguments


class ReadingStep(NamedTuple):
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
    """Reads arguments that are a JSON object: returns its text unchanged, up to the closing brace."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False

    def read(self, text: str, *, final: bool) -> ReadingStep:
        """Read new text up to the end of the object, or all of it if the object does not end there."""
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
                    return ReadingStep(text[: index + 1], index + 1, done=True)
        return ReadingStep(text, len(text), done=False)


ARGUMENT_HEADS = {
    "qwen_xml": regex.compile(r"\s*+<parameter=(?P<key>[^>\n]{1,512}+)>"),
    "glm_xml": regex.compile(r"\s*+<arg_key>(?P<key>[^<]{1,512}+)</arg_key>\s*+<arg_value>"),
}
"""By notation, the pattern of the text before the value of an argument; its group `key` is the argument's name."""


class MarkedPairs:
    """Reads arguments with marks around each name and value; they end where no further argument begins.

    A line break on either side of a value is dropped if the family writes one there. A value is read as JSON if it is
    JSON but not a string, and the schema may allow it; otherwise it is text.

    Args:
        notation: how the arguments are written.
        parameters: JSON schema of the arguments; None for any.
    """

    def __init__(self, notation: Arguments, parameters: Mapping[str, Any] | None) -> None:
        self._head = ARGUMENT_HEADS[notation]
        self._marks = STYLES[notation]
        self._parameters = parameters or {}
        self._schemas = SchemaComparison(self._parameters)
        self._has_arguments = False
        self._searched_count = 0
        self._key: str | None = None

    def read(self, text: str, *, final: bool) -> ReadingStep:
        """Read the name of the next argument, or the value of the current one once it is complete."""
        if self._key is not None:
            return self._read_value(self._key, text, final=final)
        key_match = self._head.match(text, partial=True)
        if key_match is None:
            return ReadingStep("}" if self._has_arguments else "{}", 0, done=True)
        if key_match.partial:
            return ReadingStep("", len(text) if final else 0, done=False)
        self._key = key_match["key"].strip()
        return ReadingStep("", key_match.end(), done=False)

    def _read_value(self, key: str, text: str, *, final: bool) -> ReadingStep:
        end_mark = self._marks.end
        edge = self._marks.edge
        end = text.find(end_mark, self._searched_count)
        if end < 0:
            self._searched_count = max(len(text) - len(end_mark), 0)
            return ReadingStep("", len(text) if final else 0, done=False)
        value = self._value(key, text[:end].removeprefix(edge).removesuffix(edge))
        json_member = f"{', ' if self._has_arguments else '{'}{json.dumps(key, ensure_ascii=False)}: {value}"
        self._has_arguments = True
        self._key = None
        self._searched_count = 0
        return ReadingStep(json_member, end + len(end_mark), done=False)

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
        """Whether the argument's schema allows a value; True if that cannot be decided."""
        referent = self._schemas.follow_refs(self._parameters)
        # In a schema that is not enforced, a reference may lead nowhere.
        parameters = referent if isinstance(referent, dict) else {}
        schema = dict_entry(parameters, "properties").get(key, parameters.get("additionalProperties", {}))
        try:
            return not self._schemas.disjoint(schema, {"const": value})
        except ConfigError:  # the schema refers to itself too often to be compared
            return True


def written_arguments(notation: Arguments, arguments: str, parse: Callable[[str], dict[str, Any]] = json.loads) -> str:
    """Convert arguments from JSON to the form of a family.

    Args:
        notation: how the family writes arguments.
        arguments: a JSON object, as text.
        parse: parses `arguments` if the family writes each value separately.
    """
    if notation == "json":
        return arguments
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in parse(arguments).items()
    }
    if notation == "qwen_xml":
        return "\n".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items())
    return "\n".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>" for key, text in texts.items())
