"""The arguments of a call as they grow: JSON from whatever form a family writes them in."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import regex

from drafttree.interfaces.server.dialect.families import Arguments, schema_of


class Read(NamedTuple):
    """What reading more of a text has brought.

    Attributes:
        text: more of the arguments as JSON.
        used: characters of the text that are read.
        done: whether the arguments have ended.
    """

    text: str
    used: int
    done: bool


class ArgumentReader(Protocol):
    """Reads the arguments of one call."""

    def read(self, text: str, *, final: bool) -> Read:
        """Read on.

        Args:
            text: what has not been read yet.
            final: whether there is no more.
        """
        ...


class JsonObject:
    """Reads arguments that are a JSON object; it is passed on as it is, and ends where its last brace closes."""

    def __init__(self) -> None:
        self._depth, self._quoted, self._escaped = 0, False, False

    def read(self, text: str, *, final: bool) -> Read:
        """Read up to the end of the object."""
        for place, character in enumerate(text):
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
                    return Read(text[: place + 1], place + 1, done=True)
        return Read(text, len(text), done=False)


PAIRS = {
    "qwen_xml": r"\s*+<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>",
    "glm_xml": r"\s*+<arg_key>(?P<key>.*?)</arg_key>\s*+<arg_value>(?P<value>.*?)</arg_value>",
}


class MarkedPairs:
    """Reads arguments each of which has marks around its name and its value; they end where no further one begins.

    A value is text where its schema says so, else JSON, and text where it is none.

    Args:
        kind: which marks.
        parameters: the schema of all arguments.
    """

    def __init__(self, kind: Arguments, parameters: Mapping[str, Any] | None) -> None:
        self._pair = regex.compile(PAIRS[kind], regex.DOTALL)
        self._parameters, self._begun = parameters, False

    def read(self, text: str, *, final: bool) -> Read:
        """Read one argument, if it is there as a whole."""
        found = self._pair.match(text, partial=True)
        if found is None:
            return Read("}" if self._begun else "{}", 0, done=True)
        if found.partial:
            return Read("", len(text) if final else 0, done=False)
        key, value = found["key"].strip(), self._value(found["key"].strip(), found["value"])
        written = f"{', ' if self._begun else '{'}{json.dumps(key, ensure_ascii=False)}: {value}"
        self._begun = True
        return Read(written, found.end(), done=False)

    def _value(self, key: str, text: str) -> str:
        """A value as JSON."""
        if schema_of(self._parameters, key).get("type") != "string":
            try:
                return json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
            except (ValueError, RecursionError):
                pass
        return json.dumps(text, ensure_ascii=False)


def argument_reader(kind: Arguments, parameters: Mapping[str, Any] | None) -> ArgumentReader:
    """What reads the arguments of a call.

    Args:
        kind: the form of the arguments.
        parameters: the schema of the function's arguments, None where it is not known.
    """
    return JsonObject() if kind == "json" else MarkedPairs(kind, parameters)


def written_arguments(kind: Arguments, arguments: str) -> str:
    """Arguments that are a JSON text, in the form of a family; text that is no object stays as it is."""
    if kind == "json":
        return arguments
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if not isinstance(values, dict):
        return arguments
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in values.items()
    }
    if kind == "qwen_xml":
        return "\n".join(f"<parameter={key}>\n{text}\n</parameter>" for key, text in texts.items())
    return "\n".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>" for key, text in texts.items())
