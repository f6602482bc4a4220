"""A suffix automaton over prompt and generated text: matches of any length, in constant time per token."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from drafttree.drafters.match_index import LookupDrafter, Match, MatchIndex, count_follower

MAX_LINKS = 8
"""Suffix links followed at most when a token is counted, a path is extended or a match is searched."""


class SuffixDrafter(LookupDrafter):
    """Proposes the tokens that followed earlier occurrences of the longest suffix of the text that has any.

    Source: SAM decoding (Hu et al. 2024) for the automaton, with counts and trees in place of one copied occurrence.
    """

    def new_index(self) -> MatchIndex:
        """Return an empty automaton."""
        return SuffixAutomaton()


@dataclass(slots=True, eq=False, repr=False)
class State:
    """A state of the automaton: all substrings that end at the same positions of the text.

    Attributes:
        length: length of the longest of these substrings.
        link: suffix link, the state of their longest suffix that also ends elsewhere; None for the empty string.
        next: transitions, the number of the state reached by each next token; with references here as in `link` there
            would be cycles, and the memory of a finished text would wait for the garbage collector.
        followers: how often each token came next, see `SuffixAutomaton`.
    """

    length: int
    link: "State | None" = None
    next: dict[int, int] = field(default_factory=dict)
    followers: dict[int, int] = field(default_factory=dict)


Cursor = tuple[State, int]


class SuffixAutomaton:
    """The suffix automaton of a growing text (Blumer et al. 1985), with counts of the tokens that followed each state.

    Exact counts would have to be raised along the whole chain of suffix links with every token, and in a repetitive
    text that chain is as long as the text. Here a token is counted only in the `MAX_LINKS` longest suffixes of the text
    that occurred before. A count never exceeds the number of occurrences, and equals it while no chain is longer than
    `MAX_LINKS`; the 95th percentile of the chain length is 3 in prose and 6 in code.

    A cursor is a state and the number of matching tokens. Appending a token takes amortised constant time: there are
    fewer states than twice the tokens and fewer transitions than three times the tokens.
    """

    def __init__(self) -> None:
        self._root = self._last = State(0)
        self._states = [self._root]

    @property
    def nbytes(self) -> int:
        parts = [part for state in self._states for part in (state, state.next, state.followers)]
        return sum(map(sys.getsizeof, [self._states, *parts]))

    def append(self, token: int) -> None:
        for state in self._suffix_chain(self._last):
            count_follower(state.followers, token)
        new = State(self._last.length + 1)
        number = len(self._states)
        self._states.append(new)
        state = self._last
        while state and token not in state.next:
            state.next[token] = number
            state = state.link
        new.link = self._split(state, token) if state else self._root
        self._last = new

    def _split(self, state: State, token: int) -> State:
        """Return the state whose longest substring is that of `state` plus a token, cloning one if there is none."""
        number = state.next[token]
        reached = self._states[number]
        if reached.length == state.length + 1:
            return reached
        clone = State(state.length + 1, reached.link, dict(reached.next), dict(reached.followers))
        clone_number = len(self._states)
        self._states.append(clone)
        source: State | None = state
        while source and source.next.get(token) == number:
            source.next[token] = clone_number
            source = source.link
        reached.link = clone
        return clone

    def end(self) -> Cursor:
        """Return the cursor of the whole text."""
        return self._last, self._last.length

    def step(self, cursor: Cursor, token: int) -> Cursor:
        start, length = cursor
        for state in self._suffix_chain(start):
            if token in state.next:
                return self._states[state.next[token]], min(length, state.length) + 1
        return self._root, 0

    def match(self, cursor: Cursor) -> Match | None:
        """Return the longest suffix at the cursor that was followed by something."""
        start, length = cursor
        for state in self._suffix_chain(start):
            if state.followers and state.length:
                return Match(min(length, state.length), state.followers)
        return None

    def _suffix_chain(self, state: State) -> Iterator[State]:
        """Yield a state and the states along its suffix links, at most `MAX_LINKS` in all."""
        link: State | None = state
        for _ in range(MAX_LINKS):
            if link is None:
                return
            yield link
            link = link.link
