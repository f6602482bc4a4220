"""Evidence against a claimed law of tokens, by bets that are fixed before a token is drawn.

A gambler stakes a part of his wealth on what the next token will be, at odds that are fair if the token follows the
target's distribution. Then his wealth is a martingale, and it exceeds 10^6 with a probability of 10^-6 at most, however
often and whenever one looks (Ville's inequality; Shafer 2021, "Testing by betting"). Such wealth is an e-value.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

ACCEPTANCE, FIRST_PLACE, LATER_PLACE = "acceptance", "place of first tokens", "place of later tokens"
BEFORE, BESIDE = "the token before", "the text beside"
BETS: dict[str, str] = {
    ACCEPTANCE: "drafted tokens are committed too often or too rarely",
    FIRST_PLACE: "first tokens of rounds are too likely or too unlikely ones",
    LATER_PLACE: "later tokens of rounds are too likely or too unlikely ones",
    BEFORE: "a token is as likely or unlikely as the one before it",
    BESIDE: "a token is as likely or unlikely as that of another text at its position",
}
"""What is bet on."""
STAKES = np.array([sign * 2.0**-power for power in range(1, 6) for sign in (1, -1)])
"""Shares of the wealth that are staked; a negative one bets on the opposite."""
REFUTED = 1e6
"""The e-value from which a law is refuted."""
EDGE = 1e-4
"""The share of tokens up to which rounding may have put them beyond the edge of a truncation."""
BIASES = np.geomspace(1e-3, 1.0, 61)
"""Relative changes of acceptance whose effect is counted."""
SURE = 2.326
"""The 99 % quantile of the normal distribution."""


def _no_wealth() -> dict[str, list[float]]:
    return {name: [0.0] * len(STAKES) for name in BETS}


@dataclass
class Evidence:
    """What the bets on some tokens have brought. Evidence of other tokens can be added to it.

    Attributes:
        log_wealth: per bet and stake, the natural logarithm of the wealth that began as 1.
        tokens: tokens that were bet on.
        impossible: tokens among them that have no probability; only rounding at the edge of a truncation allows some.
        first_tokens: tokens whose acceptance was bet on.
        variance: the sum of the variances of these bets, if the law holds.
        shifts: per `BIASES`, by how much the sum of their outcomes would grow if acceptance were so much likelier.
    """

    log_wealth: dict[str, list[float]] = field(default_factory=_no_wealth)
    tokens: int = 0
    impossible: int = 0
    first_tokens: int = 0
    variance: float = 0.0
    shifts: list[float] = field(default_factory=lambda: [0.0] * len(BIASES))

    def bet(self, name: str, outcome: float) -> None:
        """Settle a bet.

        Args:
            name: one of `BETS`.
            outcome: in [-1, 1], of mean 0 if the token follows its law, given everything that decided on the bet.
        """
        self.log_wealth[name] = (np.array(self.log_wealth[name]) + np.log1p(STAKES * outcome)).tolist()

    def count_power(self, chance: float, shifts: Iterable[float]) -> None:
        """Note what a bet on acceptance could have shown.

        Args:
            chance: the probability of the tokens that were bet on.
            shifts: per `BIASES`, by how much they would be likelier.
        """
        self.first_tokens += 1
        self.variance += chance * (1 - chance)
        self.shifts = [total + own for total, own in zip(self.shifts, shifts, strict=True)]

    def add(self, other: "Evidence") -> None:
        """Take over the evidence of other tokens."""
        for name, own in self.log_wealth.items():
            self.log_wealth[name] = [one + more for one, more in zip(own, other.log_wealth[name], strict=True)]
        self.tokens += other.tokens
        self.impossible += other.impossible
        self.first_tokens += other.first_tokens
        self.variance += other.variance
        self.shifts = [total + own for total, own in zip(self.shifts, other.shifts, strict=True)]

    @property
    def log_e_values(self) -> dict[str, float]:
        """Per bet, the natural logarithm of its e-value: the mean wealth of all stakes."""
        return {name: _log_mean(wealth) for name, wealth in self.log_wealth.items()}

    @property
    def log_e_value(self) -> float:
        """The natural logarithm of the e-value against the law: the mean wealth of all bets."""
        return _log_mean(list(self.log_e_values.values()))

    @property
    def refutes(self) -> bool:
        """Whether the tokens do not follow the law."""
        return self.log_e_value > math.log(REFUTED) or self.impossible > EDGE * self.tokens

    @property
    def smallest_bias(self) -> float | None:
        """The least relative growth of the probability to accept that would have been refuted with 99 %.

        By the best of the stakes, and the normal approximation of its bets' sum; None if none of up to 1 would.
        """
        needed = math.log(REFUTED * len(BETS) * len(STAKES))
        for bias, shift in zip(BIASES.tolist(), self.shifts, strict=True):
            gains = STAKES * (shift - SURE * math.sqrt(self.variance)) - STAKES**2 * self.variance / 2
            if gains.max() >= needed:
                return bias
        return None


def _log_mean(logs: list[float]) -> float:
    return float(np.logaddexp.reduce(logs)) - math.log(len(logs))
