"""Notices drafts that are accepted far less often than they should be: than before, or than a head itself claims."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

import torch
from torch import Tensor

FAR_LESS = 2
"""How many times smaller a share has to be."""
EVIDENCE = 20.0
"""Log-likelihood ratio above which a smaller share is no chance."""
FEWEST = 32
"""Rounds before and since that are compared at least."""
CONTEXT = 8
"""Tokens by which rounds are told apart."""
BEST = 3
"""A head's likeliest first tokens, which the target's token should be among."""
HIGHEST_CLAIM = 0.9
"""The chance of these that is believed at most, so that a single round proves little."""
CLAIM_EVIDENCE = 10.0
"""Log-likelihood ratio that ends a head's test either way. A head whose claims hold fails by chance once in exp(10)."""
MOST = 256
"""Rounds in which a head is tested at most."""


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


class _Watch:
    """Weighs by the log-likelihood ratio whether a share is far smaller than it should be.

    It only counts, so it finds the same in every run. A round behind the same tokens as an earlier one is not counted:
    in a text that repeats itself, the same draft is right or wrong again and again.
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
        """Take a round into account whose chance of success should be this."""
        reduced_share = share / (2 * FAR_LESS)
        self._evidence += log(reduced_share / share) if success else log((1 - reduced_share) / (1 - share))


class AcceptanceWatch(_Watch):
    """Compares recent drafts of a text with its earlier ones, by Page's test.

    Attributes:
        before: the rounds up to the suspected one.
        since: the rounds from there on.
        begin: the position of the suspected round.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = Share()
        self.since = Share()
        self.begin = 0

    def observe(self, tokens: Sequence[int], accepted: bool) -> bool:
        """Count a round that drafted something; whether drafts have become far worse.

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
    """Compares what a head claims of its likeliest tokens with how often the target's token was one of them.

    A weak head knows that it is weak, and a head that is read in a wrong way does not, whatever its kind. So it is
    tested by its own probabilities, in the first rounds of a target and a drafter. A token drawn at temperature 1
    should be among the likeliest as often as these say, and at lower temperatures more often.

    Attributes:
        found: in how many rounds the target's token was among them.
        claimed: in how many it should have been by the head's probabilities.
        is_open: whether rounds are still counted.
        is_misread: whether they have shown that the head is read in a wrong way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = Share()
        self.claimed = 0.0
        self.is_open = True
        self.is_misread = False

    def observe(self, tokens: Sequence[int], logprobs: Tensor, token: int) -> None:
        """Count a round, unless the head cannot draft the target's token, which says nothing of how it is read.

        Args:
            tokens: the text before the round, prompt included.
            logprobs: `[vocab]` of the head for the next token.
            token: the target's.
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
