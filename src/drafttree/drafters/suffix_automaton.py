"""A suffix automaton over prompt and generated text: where its end occurred before."""

import sys
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_LINKS = 8
"""If matches have no bound, at most this many suffix links are followed to count, extend a path or find a match."""


class Match(NamedTuple):
    """A suffix of the text that occurred before.

    Attributes:
        length: the length in tokens.
        followers: how often each token followed it, the most recently seen last.
    """

    length: int
    followers: dict[int, int]


@dataclass(slots=True, eq=False, repr=False)
class State:
    """A state of the automaton: all substrings that end at the same positions of the text.

    Attributes:
        length: length of the longest of these substrings.
        link: suffix link, the state of their longest suffix that also ends elsewhere; None for the empty string.
        next: transitions: the number of the next state, by token. References instead of numbers would form cycles, so
            that only the garbage collector could free a finished text.
        followers: counts of the tokens that came next; see `SuffixAutomaton`.
    """

    length: int
    link: "State | None" = None
    next: dict[int, int] = field(default_factory=dict)
    followers: dict[int, int] = field(default_factory=dict)


Cursor = tuple[State, int]


class SuffixAutomaton:
    """The suffix automaton of a growing text (Blumer et al. 1985), with counts of the tokens that followed each state.

    For exact counts, each token has to be counted in all states along the chain of suffix links. In a repetitive text
    this chain is as long as the text. A bound `max_ngram` on matches also bounds the chain, to as many states. Without
    a bound, a token is counted only in the `MAX_LINKS` longest suffixes that occurred before. Then a count is at most
    the number of occurrences, and equal to it while no chain is longer than `MAX_LINKS`. The 95th percentile of the
    chain length is 3 in prose and 6 in code.

    A cursor represents the text, or the text followed by a drafted path. It consists of a state and a length: those of
    the longest suffix that occurs in the text and is within the bound. Appending a token takes amortised constant time;
    with a bound, a repetitive text takes up to `max_ngram` further steps per token. There are fewer than two states and
    three transitions per token.

    Args:
        max_ngram: length of the longest match, None for no bound.

    Attributes:
        end: the cursor of the text so far.
    """

    def __init__(self, max_ngram: int | None = None) -> None:
        self._root = self._last = State(0)
        self._states = [self._root]
        self.end: Cursor = self._root, 0
        self._longest = max_ngram or sys.maxsize
        self._links = max_ngram + 1 if max_ngram else MAX_LINKS

    @property
    def nbytes(self) -> int:
        """Bytes of its tables, without the Python integers in them."""
        tables = [table for state in self._states for table in (state, state.next, state.followers)]
        return sum(map(sys.getsizeof, [self._states, *tables]))

    def append(self, token: int, *, follows: bool = True) -> None:
        """Add a token to the text.

        Args:
            token: token id.
            follows: whether to count it among the followers of the suffixes before it.
        """
        state = self.end[0]
        for _ in range(self._links if follows else 0):
            if not state.link:
                break
            state.followers[token] = state.followers.pop(token, 0) + 1  # the most recent one is the last
            state = state.link
        text_state = State(self._last.length + 1)
        number = len(self._states)
        self._states.append(text_state)
        source: State | None = self._last
        while source and token not in source.next:
            source.next[token] = number
            source = source.link
        text_state.link = self._split(source, token) if source else self._root
        self._last = text_state
        self.end = self.step(self.end, token)

    def _split(self, state: State, token: int) -> State:
        """Return the state whose longest substring is that of `state` plus a token. Clone a state if there is none."""
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

    def step(self, cursor: Cursor, token: int) -> Cursor:
        """Return the cursor of a text with one more token; the automaton itself does not change."""
        state, length = cursor
        for _ in range(self._links):
            if token in state.next:
                next_state = self._states[state.next[token]]
                length = min(length, state.length) + 1
                if length > self._longest:
                    length -= 1
                    if next_state.link and next_state.link.length == length:
                        next_state = next_state.link
                return next_state, length
            if not state.link:
                break
            state = state.link
        return self._root, 0

    def match(self, cursor: Cursor) -> Match | None:
        """Return the longest suffix at the cursor that was followed by something, None if there is none."""
        state, length = cursor
        for _ in range(self._links):
            if not state.link:
                break
            if state.followers:
                return Match(min(length, state.length), state.followers)
            state = state.link
        return None
