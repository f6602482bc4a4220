"""Notices where a text's drafts begin to be accepted far less often than before."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

FAR_LESS = 2
"""How many times smaller a share has to be."""
EVIDENCE = 20.0
"""Log-likelihood ratio above which a smaller share is no chance."""
FEWEST = 32
"""Rounds before and since that are compared at least."""
CONTEXT = 8
"""Tokens by which rounds are told apart."""


@dataclass
class Share:
    """In how many rounds a drafted token was accepted."""

    accepted: int = 0
    rounds: int = 0

    def __str__(self) -> str:
        return f"{self.accepted} of {self.rounds}"

    def add(self, accepted: int, rounds: int) -> None:
        """Count more rounds."""
        self.accepted += accepted
        self.rounds += rounds


class AcceptanceWatch:
    """Compares recent drafts of a text with its earlier ones, by Page's test.

    It only counts, so it finds the same in every run. A round behind the same tokens as an earlier one is not counted:
    in a text that repeats itself, the same draft is right or wrong again and again.

    Attributes:
        before: the rounds up to the suspected one.
        since: the rounds from there on.
        begin: the position of the suspected round.
    """

    def __init__(self) -> None:
        self.before, self.since, self.begin = Share(), Share(), 0
        self._evidence, self._seen = 0.0, set[int]()

    def observe(self, tokens: Sequence[int], accepted: bool) -> bool:
        """Count a round that drafted something; whether drafts have become far worse.

        Args:
            tokens: the text before the round, prompt included.
            accepted: whether a drafted token was accepted.
        """
        if (context := hash(tuple(tokens[-CONTEXT:]))) in self._seen:
            return False
        self._seen.add(context)
        if not self.since.rounds:
            self.begin = len(tokens)
        self.since.add(accepted, 1)
        share = (self.before.accepted + 1) / (self.before.rounds + 2)
        if self.before.rounds >= FEWEST:
            less = share / (2 * FAR_LESS)
            self._evidence += log(less / share) if accepted else log((1 - less) / (1 - share))
        if self._evidence <= 0:
            self.before.add(self.since.accepted, self.since.rounds)
            self.since, self._evidence = Share(), 0.0
        is_less = self.since.accepted * FAR_LESS <= share * self.since.rounds
        return self._evidence > EVIDENCE and self.since.rounds >= FEWEST and is_less
