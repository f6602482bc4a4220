"""The text of an answer as it grows, read as thinking, what is said, and calls of tools.

Reading changes no token and loses no text but marks and the white space around them. What only looks like a call is
said.
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
    """A part of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Said:
    """Text beside thinking and calls, and where it begins in the text with all marks, in characters."""

    text: str
    begin: int = field(default=0, compare=False)


@dataclass(frozen=True)
class CallBegun:
    """A call whose name is known."""

    index: int
    name: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex}", compare=False)


@dataclass(frozen=True)
class CallArguments:
    """More of the arguments of a call, which are JSON when all of them are put together."""

    index: int
    text: str


Part = Thought | Said | CallBegun | CallArguments
Thinks = Literal["begun", "perhaps", "no"]
"""Whether a text begins inside of thinking, may begin with it, or comes after it."""


class AnswerReader:
    """Reads the text of an answer as it grows.

    Text that may be the beginning of a mark is held back until it is known to be one or none. White space around
    thinking and calls is no part of what is said.

    Args:
        thinking: the marks of thinking, None for a model that does not think.
        calls: the form of calls, None where there are none.
        thinks: whether the text begins with thinking.
        speaks: whether the answer may have text besides calls; if not, text is a call cut short and is dropped.
        schemas: by the name of a function, the schema of its arguments.
        untagged: further forms of calls; one that ends before its arguments begin is said.
        single: whether the answer has one call at most; what would be another one is said.

    Attributes:
        calls: the number of calls that have begun.
        thoughts: where each stretch of thinking begins and ends, in characters of the text with all marks; the end is
            None while it lasts.
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
        single: bool = False,
    ) -> None:
        self._thinking, self._form, self._speaks, self._schemas = thinking, calls, speaks, schemas or {}
        self._forms = [calls, *untagged] if calls else []
        self._form_of_call, self._single = calls, single
        self.calls, self.thoughts = 0, list[tuple[int, int | None]]()
        self._held, self._read, self._before = "", 0, ""
        self._fresh, self._space = False, ""
        self._arguments: JsonObject | MarkedPairs | None = None
        self._marks = self._compile_marks()
        self._state: Callable[[bool], Iterator[Part]] = self._saying
        if thinking and thinks == "begun":
            self._begin_thinking(0)
        elif thinking and thinks == "perhaps":
            self._state = self._opening

    def read(self, text: str, *, final: bool) -> list[Part]:
        """The parts that more text completes; nothing is held back of the final one."""
        self._held += text
        parts: list[Part] = []
        before = None
        while before != (now := (self._state, self._read)):
            before = now
            parts += self._state(final)
        if final and self._space and not self.calls and self._speaks and self._state == self._saying:
            parts.append(Said(self._space, self.known))
            self._space = ""
        return parts

    @property
    def in_call(self) -> bool:
        """Whether the arguments of a call have begun and not ended."""
        return self._state == self._calling

    @property
    def known(self) -> int:
        """The number of characters of the text that are not held back."""
        return self._read - len(self._space)

    def _compile_marks(self) -> Any:
        """The pattern of all that may stand in what is said; None where that is plain text."""
        thinking, form = self._thinking, self._form
        silent = {*(thinking.silent if thinking else ()), *(form.silent if form else ())} - {""}
        found = []
        if thinking and thinking.anywhere:
            found += [f"(?P<think>{regex.escape(thinking.begin)})", thinking.said]
            silent = silent - {thinking.begin} | {thinking.end}
        found += [f"(?P<form{place}>{each.first})" for place, each in enumerate(self._forms)]
        found += map(regex.escape, sorted(silent))
        return regex.compile("|".join(found)) if found else None

    def _take(self, end: int) -> str:
        """Cut text from what is held."""
        taken, self._held = self._held[:end], self._held[end:]
        self._read += end
        self._before = taken[-1:] or self._before
        return taken

    def _begin_thinking(self, place: int) -> None:
        self.thoughts.append((place, None))
        self._mark_read(self._thought)

    def _mark_read(self, state: Callable[[bool], Iterator[Part]]) -> None:
        """Go on behind a mark: white space there is no text."""
        self._fresh, self._space, self._before, self._state = True, "", "", state

    def _trimmed(self, text: str, *, ends: bool) -> tuple[str, int]:
        """More of a stretch of text, and its place: without white space behind a mark, or before one that ends it."""
        text = self._space + text
        text = text.lstrip() if self._fresh else text
        begin = self._read - len(text)
        kept = text if self._marks is None and self._state == self._saying else text.rstrip()
        self._space = "" if ends else text[len(kept) :]
        self._fresh = self._fresh and not kept
        return kept, begin

    def _opening(self, final: bool) -> Iterator[Part]:
        """The beginning of a text that may think first."""
        assert self._thinking
        begun, mark = self._held.lstrip(), self._thinking.begin
        if begun.startswith(mark):
            place = self._read
            self._take(len(self._held) - len(begun) + len(mark))
            self._begin_thinking(place)
        elif final or not mark.startswith(begun):
            self._state = self._saying
        yield from ()

    def _thought(self, final: bool) -> Iterator[Part]:
        """Up to the end of thinking; where none comes, all is thinking."""
        assert self._thinking
        found = regex.search(regex.escape(self._thinking.end), self._held, partial=not final)
        ended = found is not None and not found.partial
        text, _ = self._trimmed(self._take(found.start() if found else len(self._held)), ends=ended)
        if text:
            yield Thought(text)
        if ended:
            self._take(len(self._thinking.end))
            self.thoughts[-1] = (self.thoughts[-1][0], self._read)
            self._mark_read(self._saying)

    def _saying(self, final: bool) -> Iterator[Part]:
        """Up to the next mark."""
        found = self._next_mark(final)
        whole = found is not None and not found.partial
        start = found.start() - len(self._before) if found else 0
        end = start if found and (whole or not final or self._is_call(start)) else len(self._held)
        text, begin = self._trimmed(self._take(end), ends=end < len(self._held) and (whole or final))
        if text and self._speaks:
            yield Said(text, begin)
        if found is None or not whole:
            return
        place, groups = self._read, found.groupdict()
        self._take(len(found[0]))
        if groups.get("think"):
            self._begin_thinking(place)
        elif name := groups.get("name"):
            self._form_of_call = next(each for place, each in enumerate(self._forms) if groups[f"form{place}"])
            yield self._begin_call(name)
        else:
            self._mark_read(self._saying)

    def _next_mark(self, final: bool) -> Any:
        """The next mark, or what may become one: a mark may turn out to be a part of one that has begun before."""
        if self._marks is None:
            return None
        text, begin = self._before + self._held, len(self._before)  # what is before tells whether a line begins
        found = self._marks.search(text, begin, partial=True)
        if found and not found.partial and not final:
            begun = (self._marks.match(text, place, partial=True) for place in range(begin, found.start()))
            return next(filter(None, begun), found)
        return found

    def _is_call(self, place: int) -> bool:
        """Whether what is held from a place on is a call that was cut short."""
        return self._form is not None and self._held[place:].lstrip().startswith(self._form.trigger)

    def _begin_call(self, name: str) -> CallBegun:
        assert self._form_of_call
        kind, schema = self._form_of_call.arguments, self._schemas.get(name)
        self._arguments = JsonObject() if kind == "json" else MarkedPairs(kind, schema)
        self.calls += 1
        if self._single:
            self._forms = []
            self._marks = self._compile_marks()
        self._mark_read(self._calling)
        return CallBegun(self.calls - 1, name)

    def _calling(self, final: bool) -> Iterator[Part]:
        """The arguments of a call."""
        assert self._arguments
        found = self._arguments.read(self._held, final=final)
        self._take(found.used)
        if found.text:
            yield CallArguments(self.calls - 1, found.text)
        if found.done:
            self._state = self._called

    def _called(self, final: bool) -> Iterator[Part]:
        """The end of a call."""
        assert self._form_of_call
        found = self._form_of_call.after.match(self._held, partial=True)
        if found and found.partial:
            self._take(len(self._held) if final else 0)
        else:
            self._take(found.end() if found else 0)
            self._mark_read(self._between if self._form_of_call.around[1] else self._saying)
        yield from ()

    def _between(self, final: bool) -> Iterator[Part]:
        """What follows a call of several."""
        assert self._form_of_call
        further = None if self._single else self._form_of_call.further.match(self._held, partial=True)
        closing = self._form_of_call.closing.match(self._held, partial=True)
        if further and not further.partial:
            self._take(further.end())
            yield self._begin_call(further["name"])
        elif closing and not closing.partial:
            self._take(closing.end())
            self._mark_read(self._saying)
        elif (not further and not closing) or (final and self._form_of_call is not self._form):
            self._mark_read(self._saying)
        elif final:
            self._take(len(self._held))
