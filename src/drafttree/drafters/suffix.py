"""A suffix automaton over prompt and generated text: matches of any length, in constant time per token."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from drafttree.drafters.match_index import LookupDrafter, Match, MatchIndex, note

LINKS = 8
"""Suffix links followed at most, when a token is counted, a path extended or a match looked for."""


class SuffixDrafter(LookupDrafter):
    """Proposes what followed the longest end of the text that occurred before, of whatever length.

    Source: SAM decoding (Hu et al. 2024) for the automaton, with counts and trees in place of one copied occurrence.
    """

    def new_index(self) -> MatchIndex:
        """An empty automaton."""
        return SuffixAutomaton()


@dataclass(slots=True, eq=False, repr=False)
class State:
    """All substrings that end at the same places of the text.

    Attributes:
        length: of the longest of them.
        link: the state of the longest end of theirs that occurs elsewhere too, None for the empty string.
        next: the state of each of them with one more token.
        followers: how often each token came next, see `SuffixAutomaton`.
    """

    length: int
    link: "State | None" = None
    next: dict[int, "State"] = field(default_factory=dict)
    followers: dict[int, int] = field(default_factory=dict)


Place = tuple[State, int]


class SuffixAutomaton:
    """The suffix automaton of a growing text (Blumer et al. 1985), with counts of what followed each state.

    Occurrence counts of an automaton that grows would have to be raised along the whole chain of suffix links with
    every token, which is as long as the text where it repeats itself. Here a token is counted in the `LINKS` longest
    ends of the text that occurred before: a count is what was seen while the state was one of the longest matches. It
    never exceeds the number of occurrences, and equals it while no chain is longer than `LINKS`; the 95th percentile
    of the chain is 3 in prose and 6 in code.

    A place is a state and how many tokens of its strings match. Extending the text takes amortised constant time:
    states number less than twice the tokens and transitions less than three times.
    """

    def __init__(self) -> None:
        self._root = self._last = State(0)
        self._states = [self._root]

    @property
    def nbytes(self) -> int:
        parts = [part for state in self._states for part in (state, state.next, state.followers)]
        return sum(map(sys.getsizeof, [self._states, *parts]))

    def append(self, token: int) -> None:
        for state in self._chain(self._last):
            note(state.followers, token)
        new = State(self._last.length + 1)
        self._states.append(new)
        state = self._last
        while state and token not in state.next:
            state.next[token] = new
            state = state.link
        new.link = self._part(state, token) if state else self._root
        self._last = new

    def _part(self, state: State, token: int) -> State:
        """The state of exactly a state's longest string with a token, split off from longer strings if need be."""
        whole = state.next[token]
        if whole.length == state.length + 1:
            return whole
        part = State(state.length + 1, whole.link, dict(whole.next), dict(whole.followers))
        self._states.append(part)
        above: State | None = state
        while above and above.next.get(token) is whole:
            above.next[token] = part
            above = above.link
        whole.link = part
        return part

    def end(self) -> Place:
        """The whole text."""
        return self._last, self._last.length

    def step(self, place: Place, token: int) -> Place:
        start, length = place
        for state in self._chain(start):
            if token in state.next:
                return state.next[token], min(length, state.length) + 1
        return self._root, 0

    def match(self, place: Place) -> Match | None:
        """The longest end that something followed before."""
        start, length = place
        for state in self._chain(start):
            if state.followers and state.length:
                return Match(min(length, state.length), state.followers)
        return None

    def _chain(self, state: State) -> Iterator[State]:
        """A state and those its suffix links lead to, `LINKS` of them at most."""
        link: State | None = state
        for _ in range(LINKS):
            if link is None:
                return
            yield link
            link = link.link
