"""Notices if drafts are accepted far less often than before, or than a head itself claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

import torch
from torch import Tensor

FAR_LESS = 2
"""A share is far smaller than another if it is smaller by at least this factor."""
EVIDENCE = 20.0
"""Log-likelihood ratio above which a smaller share is not attributed to chance."""
FEWEST = 32
"""The fewest rounds on each side of a comparison."""
CONTEXT = 8
"""Rounds count as the same if this many tokens before them are equal."""
BEST = 3
"""The target's token should be among this many of a head's likeliest first tokens."""
HIGHEST_CLAIM = 0.9
"""Higher claims for these tokens are lowered to this, so that a single round proves little."""
CLAIM_EVIDENCE = 10.0
"""Log-likelihood ratio that ends the test of a head, for or against it. A correct head fails once in exp(10) tests."""
MOST = 256
"""The most rounds in which a head is tested."""


@dataclass
class Share:
    """Counts of rounds: those in which a drafted token was accepted, and all."""

    accepted: int = 0
    rounds: int = 0

    def __str__(self) -> str:
        return f"{self.accepted} of {self.rounds}"

    def add(self, accepted: int, rounds: int) -> None:
        """Count more rounds."""
        self.accepted += accepted
        self.rounds += rounds


class _Watch:
    """Tests by the log-likelihood ratio whether a share is far smaller than it should be.

    Only counts decide, so the result is the same in every run. A round after the same `CONTEXT` tokens as an earlier
    round does not count: in a repetitive text, the same draft is right or wrong again and again.
    """

    def __init__(self) -> None:
        self._evidence = 0.0
        self._seen = set[int]()

    def _is_new(self, tokens: Sequence[int]) -> bool:
        context = hash(tuple(tokens[-CONTEXT:]))
        is_known = context in self._seen
        self._seen.add(context)
        return not is_known

    def _weigh(self, success: bool, share: float) -> None:
        """Count the outcome of a round whose expected probability of success is `share`."""
        reduced_share = share / (2 * FAR_LESS)
        self._evidence += log(reduced_share / share) if success else log((1 - reduced_share) / (1 - share))


class AcceptanceWatch(_Watch):
    """Compares recent drafts of a text with its earlier ones, by Page's test.

    Attributes:
        before: the rounds before the suspected change.
        since: the rounds since then.
        begin: the position in the text of the suspected change.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = Share()
        self.since = Share()
        self.begin = 0

    def observe(self, tokens: Sequence[int], accepted: bool) -> bool:
        """Count a round that drafted something, and return whether drafts have become far worse.

        Args:
            tokens: the text before the round, prompt included.
            accepted: whether a drafted token was accepted.
        """
        if not self._is_new(tokens):
            return False
        if not self.since.rounds:
            self.begin = len(tokens)
        self.since.add(accepted, 1)
        share = (self.before.accepted + 1) / (self.before.rounds + 2)
        if self.before.rounds >= FEWEST:
            self._weigh(accepted, share)
        if self._evidence <= 0:
            self.before.add(self.since.accepted, self.since.rounds)
            self.since = Share()
            self._evidence = 0.0
        is_less = self.since.accepted * FAR_LESS <= share * self.since.rounds
        return self._evidence > EVIDENCE and self.since.rounds >= FEWEST and is_less


class HeadWatch(_Watch):
    """Compares a head's probabilities of its likeliest tokens with how often the target's token is one of them.

    The probabilities of a weak head show that it is weak. Those of a head that is read incorrectly do not. So a head is
    tested by its own probabilities, in the first rounds of a target with a drafter. At temperature 1, the target's
    token should be among the likeliest as often as these probabilities say; at lower temperatures, more often.

    Attributes:
        found: counts of rounds: those in which the target's token was among the likeliest, and all.
        claimed: number of rounds in which it should have been among them, by the head's probabilities.
        is_open: whether rounds are still counted.
        is_misread: whether they have shown that the head is read incorrectly.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = Share()
        self.claimed = 0.0
        self.is_open = True
        self.is_misread = False

    def observe(self, tokens: Sequence[int], logprobs: Tensor, token: int) -> None:
        """Count a round. A round in which the head cannot draft the target's token does not count.

        Args:
            tokens: the text before the round, prompt included.
            logprobs: the head's log-probabilities `[vocab]` of the next token.
            token: the target's next token.
        """
        if token >= len(logprobs) or not self._is_new(tokens):
            return
        top_logprobs = logprobs.topk(min(BEST, len(logprobs))).values
        *claims, token_logprob = torch.cat((top_logprobs, logprobs[token, None])).tolist()
        if not token_logprob > -inf:
            return
        claim = sum(map(exp, claims))
        is_found = token_logprob >= claims[-1]
        self._weigh(is_found, min(claim, HIGHEST_CLAIM))
        self.found.add(is_found, 1)
        self.claimed += claim
        if self.found.rounds >= FEWEST:
            self.is_misread = self._evidence > CLAIM_EVIDENCE and self.found.accepted * FAR_LESS <= self.claimed
            is_sound = self._evidence < -CLAIM_EVIDENCE or self.found.rounds >= MOST
            self.is_open = not (self.is_misread or is_sound)
