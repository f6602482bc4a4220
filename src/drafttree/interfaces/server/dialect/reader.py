"""Splits the growing text of an answer into thinking, text for the user, and tool calls.

Only marks and the white space around them are dropped. What only looks like a tool call is text for the user.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import regex

from drafttree.interfaces.server.dialect.arguments import JsonObject, MarkedPairs
from drafttree.interfaces.server.dialect.families import CallForm, Thinking


@dataclass(frozen=True)
class Thought:
    """A piece of thinking."""

    text: str


@dataclass(frozen=True)
class Said:
    """A piece of text for the user.

    Attributes:
        text: the piece.
        begin: its first character's index in the whole text, marks included.
    """

    text: str
    begin: int = field(default=0, compare=False)


@dataclass(frozen=True)
class CallBegun:
    """The beginning of a tool call, once its name is known."""

    index: int
    name: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex}", compare=False)


@dataclass(frozen=True)
class CallArguments:
    """A piece of the arguments of a tool call; all pieces of a call, joined, are JSON."""

    index: int
    text: str


Part = Thought | Said | CallBegun | CallArguments
Thinks = Literal["begun", "perhaps", "no"]
"""Whether a text begins inside thinking, may begin with thinking, or comes after it."""


class AnswerReader:
    """Splits the text of an answer into parts as it grows.

    Text that may be the beginning of a mark is held back until this is certain. White space around thinking and tool
    calls is dropped.

    Args:
        thinking: the marks of thinking; None for a model that does not think.
        calls: the form of tool calls; None to read none.
        thinks: whether the text begins with thinking.
        speaks: whether the answer may have text besides calls; if not, text is part of a call cut short and is dropped.
        schemas: by the name of a function, the schema of its arguments.
        untagged: forms of calls without marks; such a call is text if the answer ends before its arguments begin.
        single_call: whether the answer has one call at most; a second one is text.

    Attributes:
        calls: the number of calls that have begun.
        thoughts: begin and end of each stretch of thinking with its marks, in characters of the whole text; the end is
            None while the stretch lasts.
    """

    def __init__(
        self,
        thinking: Thinking | None,
        calls: CallForm | None,
        *,
        thinks: Thinks = "no",
        speaks: bool = True,
        schemas: Mapping[str, Mapping[str, Any] | None] | None = None,
        untagged: Sequence[CallForm] = (),
        single_call: bool = False,
    ) -> None:
        self._thinking = thinking
        self._form = calls
        self._speaks = speaks
        self._schemas = schemas or {}
        self._forms = [calls, *untagged] if calls else []
        self._form_of_call = calls
        self._single_call = single_call
        self.calls = 0
        self.thoughts = list[tuple[int, int | None]]()
        self._held_text = ""
        self._read_count = 0
        self._previous_character = ""
        self._is_after_mark = False
        self._held_space = ""
        self._arguments: JsonObject | MarkedPairs | None = None
        self._marks = self._compile_marks()
        self._state: Callable[[bool], Iterator[Part]] = self._saying
        if thinking and thinks == "begun":
            self._begin_thinking(0)
        elif thinking and thinks == "perhaps":
            self._state = self._opening

    def read(self, text: str, *, final: bool) -> list[Part]:
        """Append text; return the parts that are now certain.

        Args:
            text: the next piece of the answer.
            final: whether it is the last piece, after which nothing is held back.
        """
        self._held_text += text
        answer_parts: list[Part] = []
        previous_state = None
        while previous_state != (state := (self._state, self._read_count)):
            previous_state = state
            answer_parts += self._state(final)
        if final and self._held_space and not self.calls and self._speaks and self._state == self._saying:
            answer_parts.append(Said(self._held_space, self.known))
            self._held_space = ""
        return answer_parts

    @property
    def in_call(self) -> bool:
        """Whether the arguments of a call have begun and not ended."""
        return self._state == self._calling

    @property
    def known(self) -> int:
        """The number of characters of the text that are not held back."""
        return self._read_count - len(self._held_space)

    def _compile_marks(self) -> Any:
        """The pattern of the marks that may occur in text for the user; None if there are none."""
        thinking = self._thinking
        form = self._form
        silent = {*(thinking.silent if thinking else ()), *(form.silent if form else ())} - {""}
        patterns = []
        if thinking and thinking.anywhere:
            patterns += [f"(?P<think>{regex.escape(thinking.begin)})", thinking.said]
            silent = silent - {thinking.begin} | {thinking.end}
        patterns += [f"(?P<form{index}>{call_form.first})" for index, call_form in enumerate(self._forms)]
        patterns += map(regex.escape, sorted(silent))
        return regex.compile("|".join(patterns)) if patterns else None

    def _take(self, end: int) -> str:
        """Remove the first `end` characters from the held text, and return them."""
        text, self._held_text = self._held_text[:end], self._held_text[end:]
        self._read_count += end
        self._previous_character = text[-1:] or self._previous_character
        return text

    def _begin_thinking(self, mark_begin: int) -> None:
        self.thoughts.append((mark_begin, None))
        self._mark_read(self._thought)

    def _mark_read(self, state: Callable[[bool], Iterator[Part]]) -> None:
        """Continue in `state` after a mark, and drop the white space behind the mark."""
        self._is_after_mark = True
        self._held_space = ""
        self._previous_character = ""
        self._state = state

    def _trimmed(self, text: str, *, ends: bool) -> tuple[str, int]:
        """Drop white space after a mark. Hold back white space at the end, which is dropped if a mark follows.

        Returns:
            The text, and the index of its first character in the whole text.
        """
        text = self._held_space + text
        text = text.lstrip() if self._is_after_mark else text
        begin = self._read_count - len(text)
        trimmed_text = text if self._marks is None and self._state == self._saying else text.rstrip()
        self._held_space = "" if ends else text[len(trimmed_text) :]
        self._is_after_mark = self._is_after_mark and not trimmed_text
        return trimmed_text, begin

    def _opening(self, final: bool) -> Iterator[Part]:
        """State: at the beginning of a text that may begin with thinking."""
        assert self._thinking
        held_text = self._held_text.lstrip()
        mark = self._thinking.begin
        if held_text.startswith(mark):
            mark_begin = self._read_count
            self._take(len(self._held_text) - len(held_text) + len(mark))
            self._begin_thinking(mark_begin)
        elif final or not mark.startswith(held_text):
            self._state = self._saying
        yield from ()

    def _thought(self, final: bool) -> Iterator[Part]:
        """State: inside thinking, which lasts up to its end mark."""
        assert self._thinking
        end_match = regex.search(regex.escape(self._thinking.end), self._held_text, partial=not final)
        has_ended = end_match is not None and not end_match.partial
        text, _ = self._trimmed(self._take(end_match.start() if end_match else len(self._held_text)), ends=has_ended)
        if text:
            yield Thought(text)
        if has_ended:
            self._take(len(self._thinking.end))
            self.thoughts[-1] = (self.thoughts[-1][0], self._read_count)
            self._mark_read(self._saying)

    def _saying(self, final: bool) -> Iterator[Part]:
        """State: inside text for the user, up to the next mark."""
        mark_match = self._next_mark(final)
        is_whole = mark_match is not None and not mark_match.partial
        start = mark_match.start() - len(self._previous_character) if mark_match else 0
        end = start if mark_match and (is_whole or not final or self._is_call(start)) else len(self._held_text)
        text, begin = self._trimmed(self._take(end), ends=end < len(self._held_text) and (is_whole or final))
        if text and self._speaks:
            yield Said(text, begin)
        if mark_match is None or not is_whole:
            return
        mark_begin = self._read_count
        groups = mark_match.groupdict()
        self._take(len(mark_match[0]))
        if groups.get("think"):
            self._begin_thinking(mark_begin)
        elif name := groups.get("name"):
            self._form_of_call = next(form for index, form in enumerate(self._forms) if groups[f"form{index}"])
            yield self._begin_call(name)
        else:
            self._mark_read(self._saying)

    def _next_mark(self, final: bool) -> Any:
        """The next mark, or a partial match that may become one. The latter may begin before the next whole mark."""
        if self._marks is None:
            return None
        text = self._previous_character + self._held_text  # the previous character shows whether a line begins
        begin = len(self._previous_character)
        mark_match = self._marks.search(text, begin, partial=True)
        if mark_match and not mark_match.partial and not final:
            earlier_marks = (self._marks.match(text, index, partial=True) for index in range(begin, mark_match.start()))
            return next(filter(None, earlier_marks), mark_match)
        return mark_match

    def _is_call(self, start: int) -> bool:
        """Whether the held text from `start` on is the beginning of a call."""
        return self._form is not None and self._held_text[start:].lstrip().startswith(self._form.trigger)

    def _begin_call(self, name: str) -> CallBegun:
        assert self._form_of_call
        notation = self._form_of_call.arguments
        schema = self._schemas.get(name)
        self._arguments = JsonObject() if notation == "json" else MarkedPairs(notation, schema)
        self.calls += 1
        if self._single_call:
            self._forms = []
            self._marks = self._compile_marks()
        self._mark_read(self._calling)
        return CallBegun(self.calls - 1, name)

    def _calling(self, final: bool) -> Iterator[Part]:
        """State: inside the arguments of a call."""
        assert self._arguments
        reading = self._arguments.read(self._held_text, final=final)
        self._take(reading.used)
        if reading.text:
            yield CallArguments(self.calls - 1, reading.text)
        if reading.done:
            self._state = self._called

    def _called(self, final: bool) -> Iterator[Part]:
        """State: after the arguments of a call, up to its end mark."""
        assert self._form_of_call
        end_match = self._form_of_call.after.match(self._held_text, partial=True)
        if end_match and end_match.partial:
            self._take(len(self._held_text) if final else 0)
        else:
            self._take(end_match.end() if end_match else 0)
            self._mark_read(self._between if self._form_of_call.around[1] else self._saying)
        yield from ()

    def _between(self, final: bool) -> Iterator[Part]:
        """State: after a call, which other calls or a closing mark may follow."""
        assert self._form_of_call
        next_call = None if self._single_call else self._form_of_call.further.match(self._held_text, partial=True)
        closing_mark = self._form_of_call.closing.match(self._held_text, partial=True)
        if next_call and not next_call.partial:
            self._take(next_call.end())
            yield self._begin_call(next_call["name"])
        elif closing_mark and not closing_mark.partial:
            self._take(closing_mark.end())
            self._mark_read(self._saying)
        elif (not next_call and not closing_mark) or (final and self._form_of_call is not self._form):
            self._mark_read(self._saying)
        elif final:
            self._take(len(self._held_text))
