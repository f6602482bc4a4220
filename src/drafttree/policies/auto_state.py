from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import ConfigError
from drafttree.core.tree import DraftTree
from drafttree.policies.base import RoundOutcome, TextContext
from drafttree.policies.calibration import SurvivalCalibration

MEMORY = 32.0
"""Rounds after which a round counts 1/e in the rate of drafting."""
PLAIN_WEIGHT = 4.0
"""Tokens at plain decoding's rate that the rate of drafting begins with."""
CARRIED = 0.5
"""The share of the rate's weight that a later text begins with."""
CARRIED_COUNTS = 32.0
"""Counts in a cell of the calibration that a later text begins with, at most."""
LARGEST_LOSS, LARGEST_GAIN = -2.0, 4.0
"""Tokens by which drafting may fall behind plain decoding before it pauses, and gain that is remembered at most."""
RETRY_LOSS = 0.5
"""Tokens that drafting may lose when it is tried again after a pause."""
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 512
"""Rounds of plain decoding in the first pause, and at most."""
LONGER, MUCH_LONGER, CLEAR_LOSS = 2, 4, 0.85
"""What each pause is over the one before it, and where drafting was below this share of plain decoding's rate."""

LEAST_CHANCE = 0.005
"""Probability of acceptance below which a node is never kept, however cheap it is."""


@dataclass(frozen=True)
class Balance:
    """What drafting by one model of the drafter has gained or lost, and whether it pauses for that.

    Attributes:
        surplus: tokens by which recent drafting was ahead of plain decoding, between `LARGEST_LOSS` and `LARGEST_GAIN`.
        waiting: rounds without its drafts before it is tried again.
        pause: rounds of the latest pause, 0 where none was needed since drafting was ahead.
    """

    surplus: float = 0.0
    waiting: int = 0
    pause: int = 0

    def after(self, gain: float, rate: float) -> "Balance":
        """The balance after a drafted round.

        Args:
            gain: tokens by which the round was ahead of plain decoding.
            rate: tokens by cost of recent drafting over those of plain decoding.
        """
        surplus = min(self.surplus + gain, LARGEST_GAIN)
        if surplus >= LARGEST_LOSS:
            return Balance(surplus, self.waiting, 0 if surplus > 0 else self.pause)
        longer = MUCH_LONGER if rate < CLEAR_LOSS else LONGER
        pause = min(longer * self.pause, LONGEST_PAUSE) or SHORTEST_PAUSE
        return Balance(LARGEST_LOSS + RETRY_LOSS, pause, pause)  # less may be lost when it is tried again

    def rested(self) -> "Balance":
        """The balance after a round without its drafts."""
        return Balance(self.surplus, self.waiting - 1, self.pause) if self.waiting else self


@dataclass(frozen=True)
class AutoState:
    """What the `auto` policy knows of a text.

    It counts tokens and rounds and reads no clock, so a text's trees depend on the text, the seed and the curve.

    Attributes:
        costs: costs of the target and the drafter.
        calibrations: a calibration for each model of the drafter.
        balances: a balance for each of them.
        tokens: tokens committed by recent rounds that drafted.
        cost: the cost of those rounds by the curve.
    """

    costs: CostCurve
    calibrations: tuple[SurvivalCalibration, ...]
    balances: tuple[Balance, ...]
    tokens: float = 0.0
    cost: float = 0.0

    @classmethod
    def begin(cls, context: TextContext) -> "AutoState":
        """The state of a new text, which begins with what earlier ones have learned.

        Raises:
            ConfigError: the costs are not known.
        """
        if context.costs is None:
            raise ConfigError("the policy auto weighs nodes by their costs; give it a cost curve")
        before = context.learned
        if before is None:
            models = len(context.costs.draft)
            return cls(context.costs, (SurvivalCalibration.empty(),) * models, (Balance(),) * models)
        pace = context.costs.plain_round / before.costs.plain_round
        return replace(
            before,
            costs=context.costs,
            calibrations=tuple(each.faded(CARRIED_COUNTS) for each in before.calibrations),
            tokens=CARRIED * before.tokens,
            cost=CARRIED * pace * before.cost,
        )

    @cached_property
    def rate(self) -> float:
        """Tokens per unit of cost that drafting reaches, or plain decoding where that is faster."""
        return max(self.drafting_rate, 1 / self.costs.plain_round)

    @property
    def drafting_rate(self) -> float:
        """Tokens per unit of cost that drafting reaches."""
        return (self.tokens + PLAIN_WEIGHT) / (self.cost + PLAIN_WEIGHT * self.costs.plain_round)

    def least_chance(self, budget: int) -> float:
        """The probability of acceptance below which no node is worth its share of any pass over a tree of a budget."""
        if budget not in self._least:
            self._least[budget] = max(LEAST_CHANCE, self.rate * self.costs.target.cheapest_node(budget))
        return self._least[budget]

    @cached_property
    def _least(self) -> dict[int, float]:
        return {}

    def calibration(self, source: int) -> SurvivalCalibration:
        """The calibration of a model of the drafter."""
        return self.calibrations[min(source, len(self.calibrations) - 1)]

    @property
    def model(self) -> Balance:
        """The balance of the drafter's model; lookup, where it is mixed in, has one of its own before it."""
        return self.balances[-1]

    @property
    def is_paused(self) -> bool:
        """Whether all of the drafter's models pause."""
        return all(balance.waiting for balance in self.balances)

    def is_worth(self, accepted: float) -> bool:
        """Whether so many accepted tokens would be worth the round that drafts least."""
        return accepted * self.costs.plain_round > self.costs.round(2, (1,)) - self.costs.plain_round

    def observe(self, outcome: RoundOutcome) -> "AutoState":
        """The state after a round."""
        tree = outcome.tree
        if not tree.widths:
            rested = tuple(balance.rested() for balance in self.balances)
            return AutoState(self.costs, self.calibrations, rested, self.tokens, self.cost)
        cost, tokens = self.costs.round(tree.size, tree.widths, tree.source), len(outcome.path)
        memory, plain = 1 - 1 / MEMORY, self.costs.plain_round
        after = replace(
            self,
            calibrations=self._counted(outcome.path, tree),
            tokens=memory * self.tokens + tokens,
            cost=memory * self.cost + cost,
        )
        place = min(tree.source, len(self.balances) - 1)
        balances = [balance.rested() for balance in self.balances]
        balances[place] = self.balances[place].after(tokens - cost / plain, plain * after.drafting_rate)
        return replace(after, balances=tuple(balances))

    def _counted(self, path: Sequence[int], tree: DraftTree) -> tuple[SurvivalCalibration, ...]:
        counted = list(self.calibrations)
        place = min(tree.source, len(counted) - 1)
        counted[place] = counted[place].observe(tree, path)
        return tuple(counted)
