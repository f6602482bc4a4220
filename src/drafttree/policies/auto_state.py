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
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 128
"""Rounds of plain decoding in the first pause, and at most; each doubles the one before."""

LEAST_CHANCE = 0.005
"""Probability of acceptance below which a node is never kept, however cheap it is."""


@dataclass(frozen=True)
class AutoState:
    """What the `auto` policy knows of a text.

    It counts tokens and rounds and reads no clock, so a text's trees depend on the text, the seed and the curve.

    Attributes:
        costs: costs of the target and the drafter.
        calibrations: a calibration for each model of the drafter.
        tokens: tokens committed by recent rounds that drafted.
        cost: the cost of those rounds by the curve.
        surplus: tokens by which recent drafting was ahead of plain decoding, between `LARGEST_LOSS` and `LARGEST_GAIN`.
        waiting: rounds of plain decoding before drafting is tried again.
        pause: length of the next pause.
    """

    costs: CostCurve
    calibrations: tuple[SurvivalCalibration, ...]
    tokens: float = 0.0
    cost: float = 0.0
    surplus: float = 0.0
    waiting: int = 0
    pause: int = SHORTEST_PAUSE

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
            return cls(context.costs, tuple(SurvivalCalibration.empty() for _ in context.costs.draft))
        return replace(
            before,
            costs=context.costs,
            calibrations=tuple(each.faded(CARRIED_COUNTS) for each in before.calibrations),
            tokens=CARRIED * before.tokens,
            cost=CARRIED * before.cost,
        )

    @cached_property
    def rate(self) -> float:
        """Tokens per unit of cost that drafting reaches, or plain decoding where that is faster."""
        plain = self.costs.plain_round
        return max((self.tokens + PLAIN_WEIGHT) / (self.cost + PLAIN_WEIGHT * plain), 1 / plain)

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

    def is_worth(self, accepted: float) -> bool:
        """Whether so many accepted tokens would be worth the round that drafts least."""
        return accepted * self.costs.plain_round > self.costs.round(2, (1,)) - self.costs.plain_round

    def observe(self, outcome: RoundOutcome) -> "AutoState":
        """The state after a round."""
        tree = outcome.tree
        if not tree.widths:
            return replace(self, waiting=max(self.waiting - 1, 0))
        cost, tokens = self.costs.round(tree.size, tree.widths, tree.source), len(outcome.path)
        gain = tokens - cost / self.costs.plain_round
        memory = 1 - 1 / MEMORY
        after = replace(
            self,
            calibrations=self._counted(outcome.path, tree),
            tokens=memory * self.tokens + tokens,
            cost=memory * self.cost + cost,
            surplus=min(self.surplus + gain, LARGEST_GAIN),
            pause=SHORTEST_PAUSE if self.surplus + gain > 0 else self.pause,
        )
        return after._paused() if after.surplus < LARGEST_LOSS else after

    def _counted(self, path: Sequence[int], tree: DraftTree) -> tuple[SurvivalCalibration, ...]:
        counted = list(self.calibrations)
        place = min(tree.source, len(counted) - 1)
        counted[place] = counted[place].observe(tree, path)
        return tuple(counted)

    def _paused(self) -> "AutoState":
        """Stop drafting for a while; the loss allowed is smaller when it is tried again."""
        longer = min(2 * self.pause, LONGEST_PAUSE)
        return replace(self, waiting=self.pause, pause=longer, surplus=LARGEST_LOSS + RETRY_LOSS)
