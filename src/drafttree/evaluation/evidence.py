"""Evidence against a claimed law of tokens, by bets that are fixed before a token is drawn.

A gambler stakes a share of his wealth on the next token, at odds that are fair if the token follows the target's
distribution. If it does, his wealth is a martingale, and it ever exceeds 10^6 with a probability of at most 10^-6. That
holds however often one looks (Ville's inequality; Shafer 2021, "Testing by betting"). Such wealth is an e-value.
"""

import math
from dataclasses import dataclass, field

import numpy as np

ACCEPTANCE = "acceptance"
FIRST_PLACE = "place of first tokens"
LATER_PLACE = "place of later tokens"
BEFORE = "the token before"
BESIDE = "the text beside"
IMPOSSIBLE = "impossible tokens"
BETS: dict[str, str] = {
    ACCEPTANCE: "drafted tokens are committed too often or too rarely",
    FIRST_PLACE: "first tokens of rounds are too likely or too unlikely ones",
    LATER_PLACE: "later tokens of rounds are too likely or too unlikely ones",
    BEFORE: "a token is as likely or unlikely as the one before it",
    BESIDE: "a token is as likely or unlikely as that of another text at its position",
    IMPOSSIBLE: "tokens have probability 0, such as those that top_k leaves out",
}
"""The bets by name, each with what winning it says."""
STAKES = np.array([sign * 2.0**-power for power in range(1, 6) for sign in (1, -1)])
"""The shares of the wealth that are staked; a negative share bets on the opposite."""
IMPOSSIBLE_STAKES = np.geomspace(1e-5, 0.1, len(STAKES))
"""The shares that are staked on impossible tokens."""
EDGE = 1e-4
"""The share of tokens that may lie outside a truncation because of rounding."""
REFUTED = 1e6
"""The e-value above which a law is refuted."""
BIAS = 0.3
"""The relative growth of acceptance probabilities whose effect on the bets is measured."""
SURE = 2.326
"""The 99 % quantile of the normal distribution."""


def _no_wealth() -> dict[str, list[float]]:
    return {name: [0.0] * len(STAKES) for name in BETS}


@dataclass
class Evidence:
    """The results of the bets on some tokens; results for other tokens can be added.

    Attributes:
        log_wealth: per bet and stake, the natural logarithm of the wealth, which began as 1.
        tokens: tokens that were bet on.
        impossible: tokens among them that have no probability.
        first_tokens: tokens whose acceptance was bet on.
        variance: the sum of the variances of the bets on acceptance, if the law holds.
        tried: rounds that were verified again with other random numbers, with and without `BIAS`.
        shift: the sum, over these rounds, of how much `BIAS` raises the outcome of the bet on acceptance.
        shift_squares: the sum of the squares of these.
    """

    log_wealth: dict[str, list[float]] = field(default_factory=_no_wealth)
    tokens: int = 0
    impossible: int = 0
    first_tokens: int = 0
    variance: float = 0.0
    tried: int = 0
    shift: float = 0.0
    shift_squares: float = 0.0

    def bet(self, name: str, outcome: float) -> None:
        """Settle a bet.

        Args:
            name: one of `BETS`, except `IMPOSSIBLE`.
            outcome: in [-1, 1], with mean 0 if the token follows its law, given everything that decided on the bet.
        """
        self._settle(name, STAKES * outcome)

    def count_token(self, *, possible: bool) -> None:
        """Count a token, and settle the bet that a larger share of tokens than `EDGE` has no probability."""
        self.tokens += 1
        self.impossible += not possible
        self._settle(IMPOSSIBLE, IMPOSSIBLE_STAKES * ((not possible) / EDGE - 1))

    def count_acceptance(self, chance: float) -> None:
        """Count a bet on acceptance; `chance` is the probability of the tokens that it was on."""
        self.first_tokens += 1
        self.variance += chance * (1 - chance)

    def count_shift(self, shift: float) -> None:
        """Count a round that was verified again, and by how much `BIAS` raised the outcome of its bet on acceptance."""
        self.tried += 1
        self.shift += shift
        self.shift_squares += shift**2

    def add(self, other_evidence: "Evidence") -> None:
        """Add the results of bets on other tokens."""
        for name, wealth in self.log_wealth.items():
            self.log_wealth[name] = [
                log + other_log for log, other_log in zip(wealth, other_evidence.log_wealth[name], strict=True)
            ]
        for count in ("tokens", "impossible", "first_tokens", "variance", "tried", "shift", "shift_squares"):
            setattr(self, count, getattr(self, count) + getattr(other_evidence, count))

    def _settle(self, name: str, gains: np.ndarray) -> None:
        self.log_wealth[name] = (np.array(self.log_wealth[name]) + np.log1p(gains)).tolist()

    @property
    def log_e_values(self) -> dict[str, float]:
        """Per bet, the natural logarithm of its e-value, which is the mean wealth of all stakes."""
        return {name: _log_mean(wealth) for name, wealth in self.log_wealth.items()}

    @property
    def log_e_value(self) -> float:
        """The natural logarithm of the e-value against the law, which is the mean wealth of all bets."""
        return _log_mean(list(self.log_e_values.values()))

    @property
    def refutes(self) -> bool:
        """Whether the evidence refutes the law."""
        return self.log_e_value > math.log(REFUTED)

    @property
    def smallest_bias(self) -> float | None:
        """The least relative growth of acceptance probabilities that would have been refuted with 99 % probability.

        It takes the best stake, a normal approximation of the sum of its bets, and the measured effect of `BIAS` less
        two standard errors. This is an upper estimate, since a smaller bias has at least its share of that effect.
        None if the growth is above `BIAS`, or if no round was verified again.
        """
        if not self.tried:
            return None
        mean = self.shift / self.tried
        error = math.sqrt(max(self.shift_squares / self.tried - mean**2, 0.0) / self.tried)
        effect = (mean - 2 * error) * self.first_tokens
        stakes = STAKES[STAKES > 0]
        deviation = math.sqrt(self.variance)
        costs = math.log(REFUTED * len(BETS) * len(STAKES)) / stakes + stakes * self.variance / 2
        needed_effect = float((costs + SURE * deviation).min())
        return BIAS * needed_effect / effect if effect >= needed_effect else None


def _log_mean(logs: list[float]) -> float:
    return float(np.logaddexp.reduce(logs)) - math.log(len(logs))
