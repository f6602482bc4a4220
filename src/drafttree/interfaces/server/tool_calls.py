"""Calls of tools as the model writes them, and how they are read from its text while it grows.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

This is the form of Hermes and Qwen; the grammar keeps the model to it to the letter, so nothing else has to be parsed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from drafttree.engine.detokenizer import unfinished
from drafttree.interfaces.server.protocol.messages import FunctionDefinition

BEGIN = "<tool_call>"
ARGUMENTS = '", "arguments": '
END = "}\n</tool_call>"
HEAD = re.compile(re.escape(BEGIN) + r'\n\{"name": "([^"]*)' + re.escape(ARGUMENTS))
BETWEEN = "\n"


def call_text(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return f'{BEGIN}\n{{"name": "{name}{ARGUMENTS}{arguments}{END}'


def call_format(name: str, tool: FunctionDefinition) -> dict[str, Any]:
    """The tag of a structural tag that calls of a tool conform to."""
    schema = {"type": "object", "properties": {}} if tool.parameters is None else tool.parameters
    content = {"type": "json_schema", "json_schema": schema}
    begin, _, end = call_text(name, "\0").partition("\0")
    return {"type": "tag", "begin": begin, "content": content, "end": end}


@dataclass(frozen=True)
class Said:
    """Text beside the calls."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """A call whose name is known."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the arguments of a call, which are JSON when all of them are put together."""

    index: int
    text: str


Part = Said | CallBegun | CallArguments


class ToolCallReader:
    """Reads the text of an answer as it grows.

    White space around calls is no part of what is said.

    Args:
        speaks: whether the answer may have text besides calls; if not, text is a call cut short and is dropped.

    Attributes:
        calls: the number of calls that have begun.
    """

    def __init__(self, *, speaks: bool = True) -> None:
        self.calls, self._speaks = 0, speaks
        self._held = ""
        self._inside = False

    def read(self, text: str, *, final: bool) -> list[Part]:
        """The parts that more text completes.

        Args:
            text: what is added.
            final: whether the answer ends with it; nothing is held back then.
        """
        self._held += text
        return [*self._parts(final)]

    def _parts(self, final: bool) -> Iterator[Part]:
        while True:
            if self._inside:
                yield from self._arguments(final)
                if self._inside:
                    return
            begin = self._held.find(BEGIN)
            yield from self._said(begin, final)
            if begin < 0 or not (head := HEAD.match(self._held)):
                return
            yield CallBegun(self.calls, head[1])
            self.calls, self._inside, self._held = self.calls + 1, True, self._held[head.end() :]

    def _said(self, begin: int, final: bool) -> Iterator[Said]:
        """What stands before a call that begins at a place, -1 where none has begun."""
        whole = final and begin < 0 and not self.calls
        end = begin if begin >= 0 else len(self._held) - (0 if final else unfinished(self._held, (BEGIN,)))
        known = self._held[:end] if whole else self._held[:end].rstrip()
        if known and self._speaks:
            yield Said(known)
        self._held = self._held[begin if begin >= 0 else len(known) :]

    def _arguments(self, final: bool) -> Iterator[CallArguments]:
        end = self._held.find(END)
        cut = end if end >= 0 else len(self._held) - (0 if final else unfinished(self._held, (END,)))
        if cut:
            yield CallArguments(self.calls - 1, self._held[:cut])
        self._inside, self._held = end < 0, self._held[cut + (len(END) if end >= 0 else 0) :]
