"""What lookup drafters share: what followed a match before becomes a row of probabilities that mean confidence.

A lookup drafter knows nothing but the text so far. It finds the longest end of the text that occurred before, and
proposes what followed there. Counts alone say little about how likely that is: a lone continuation of one matching
word is wrong most of the time, one of thirty matching tokens hardly ever. So how often a match of some length holds is
learned from the text itself as it goes by, prompt included, as adaptive escape estimation does in text compression
(PPM; Bloom's PPMZ and its secondary escape estimation). What a row leaves over goes to its last column, which stands
for every token that is not proposed.
"""

from dataclasses import dataclass, field
from itertools import islice
from math import log
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from drafttree.drafters.base import HiddenStates
from drafttree.drafters.pass_counter import PassCounter

WIDTH = 32
"""Followers of a match that are proposed at most, the most recently seen first."""
HOLDS = (0.25, 0.25, 0.45, 0.6, 0.75, 0.9, 0.95)
"""How often a match holds before anything is known of the text, by the bit length of the match's length."""
FAITH = 2.0
"""Observations this prior is worth."""
MEMORY = 32
"""Observations after which older ones begin to fade."""


class Match(NamedTuple):
    """An end of the text that occurred before.

    Attributes:
        length: in tokens.
        followers: how often each token followed it, the most recently seen last.
    """

    length: int
    followers: dict[int, int]


class MatchIndex(Protocol):
    """What has been said and what followed it. A place stands for a text: the one so far, or that with a path added."""

    @property
    def nbytes(self) -> int:
        """Memory of its tables, the numbers in them left out."""
        ...

    def append(self, token: int) -> None:
        """Add a token to the text, in constant amortised time."""
        ...

    def end(self) -> Any:
        """The place of the text so far."""
        ...

    def step(self, place: Any, token: int) -> Any:
        """The place of a text with one more token, which the memory does not keep."""
        ...

    def match(self, place: Any) -> Match | None:
        """The longest end of that text that something followed before."""
        ...


def note(followers: dict[int, int], token: int) -> None:
    """Count a token that followed once more, and make it the most recent."""
    followers[token] = followers.pop(token, 0) + 1


@dataclass
class Confidence:
    """How often one of a match's followers is the next token, learned for each kind of match."""

    _tallies: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def of(self, match: Match) -> float:
        """Probability that the next token is among the followers of a match."""
        held, seen = self._tallies.get(_kind(match), (0.0, 0.0))
        return (held + FAITH * HOLDS[_kind(match)[0]]) / (seen + FAITH)

    def learn(self, match: Match, token: int) -> None:
        """Take note of the token that came after a match."""
        held, seen = self._tallies.get(_kind(match), (0.0, 0.0))
        fade = 0.5 if seen >= MEMORY else 1.0
        self._tallies[_kind(match)] = fade * held + (token in match.followers), fade * seen + 1

    def spread(self, match: Match | None) -> tuple[dict[int, float], float]:
        """Probabilities of a match's followers, shared by their counts, and of everything else."""
        if match is None:
            return {}, 1.0
        recent = dict(islice(reversed(match.followers.items()), WIDTH))
        sure, total = self.of(match), sum(recent.values())
        return {token: sure * count / total for token, count in recent.items()}, 1 - sure


def _kind(match: Match) -> tuple[int, int]:
    """Matches are alike in the magnitude of their length, and in having one, two or more followers."""
    return min(match.length.bit_length(), len(HOLDS) - 1), min(len(match.followers), 3)


class LookupDrafter:
    """Base of drafters that propose what followed before; nothing is trained and no model runs.

    Args:
        vocab_size: of the target.
        device: where the target's tensors live.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.device = torch.device(device)
        self.context: int | None = None
        self.hidden_layers = ()
        self.levels: int | None = None
        self.nbytes = 0

    def new_index(self) -> MatchIndex:
        """An empty memory for one text."""
        raise NotImplementedError

    def start(self, prompt: list[int], capacity: int) -> "LookupSession":
        """Begin a sequence; the prompt is read on the first draft."""
        return LookupSession(self.new_index(), prompt, self.vocab_size, self.device)


class LookupSession(PassCounter):
    """The memory of one text, and the places of the frontier.

    Rows are `vocab_size + 1` wide: tokens that are not proposed are at -inf, and the last column is their probability.
    A place without a match has a row that proposes nothing. Tokens are read once, when the next draft begins.
    """

    def __init__(self, memory: MatchIndex, prompt: list[int], vocab_size: int, device: torch.device) -> None:
        super().__init__(torch.device("cpu"))
        self._index, self._vocab, self._device = memory, vocab_size, device
        self._confidence = Confidence()
        self._unread = list(prompt)
        self._places: list[Any] = []

    @property
    def nbytes(self) -> int:
        return self._index.nbytes

    def prefill(self, hidden_states: HiddenStates) -> None:
        self._read()

    def root(self) -> Tensor:
        with self.counted():
            self._read()
            return self._look([self._index.end()])

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        with self.counted():
            pairs = zip(tokens[0].tolist(), origins[0].tolist(), strict=True)
            return self._look([self._index.step(self._places[origin], token) for token, origin in pairs])

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._unread += tokens

    def expected(self, levels: int) -> float:
        """Tokens of the likeliest continuation that are right, in expectation, `levels` of them at most."""
        with self.timer:
            self._read()
            place, path, total = self._index.end(), 1.0, 0.0
            for _ in range(levels):
                named, _ = self._confidence.spread(self._index.match(place))
                if not named:
                    break
                token = max(named, key=named.__getitem__)
                path *= named[token]
                total += path
                place = self._index.step(place, token)
        return total

    def _read(self) -> None:
        for token in self._unread:
            if match := self._index.match(self._index.end()):
                self._confidence.learn(match, token)
            self._index.append(token)
        self._unread = []

    def _look(self, places: list[Any]) -> Tensor:
        """The rows of some places, `[1, places, vocab + 1]`."""
        nodes, tokens, logprobs = [], [], []
        for node, place in enumerate(places):
            named, left = self._confidence.spread(self._index.match(place))
            for token, probability in (*named.items(), (self._vocab, left)):
                nodes.append(node)
                tokens.append(token)
                logprobs.append(log(probability))
        rows = torch.full((1, len(places), self._vocab + 1), -torch.inf, device=self._device)
        where = torch.tensor([nodes, tokens], device=self._device)
        rows[0, where[0], where[1]] = torch.tensor(logprobs, device=self._device)
        self._places = places
        return rows
