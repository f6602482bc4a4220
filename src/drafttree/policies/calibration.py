"""Survival calibration: the probability that a drafted token is accepted, from what the drafter says of it.

A drafter's probabilities are not acceptance probabilities. At temperature 0 a token is accepted if it is the target's
best, which the drafter's best token of probability 0.3 often is; and with a guided draft (coupling) the numbers are no
probabilities of anything. So nodes are sorted into cells by depth, rank and the drafter's log-probability, and in each
cell it is counted how many of those whose parent was accepted were accepted themselves. A cell with few counts follows
the cells of the same rank and log-probability at all depths, and those follow a curve fitted beforehand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from drafttree.core.lazy import numpy as np
from drafttree.core.tree import DraftTree

DEPTHS = 4
"""Levels told apart; the last stands for all deeper ones."""
RANKS = (0, 1, 2, 3, 3, 3, 4)
"""The class of each rank among siblings; the last stands for all further ones."""
CLASSES, LAST_RANK = RANKS[-1] + 1, len(RANKS) - 1
BINS, BIN_SCALE = 16, 6.0
"""Bins of the log-probability l: the whole part of `BIN_SCALE` times the root of -l, so they are finest near 0."""
PRIOR_LOGITS, PRIOR_SLOPE = (2.0, 1.3, 1.1, 1.1, 1.0), 1.3
"""The log-odds of acceptance before anything is counted: one number for each class of ranks, plus the slope times the
log-probability. Fitted to the embedded drafters at temperatures 0 and 1 (docs/log.md, 2026-11-22)."""
PRIOR_WEIGHT, POOLED_WEIGHT = 4.0, 12.0
"""Counts that the fitted curve stands for, and counts that all depths together stand for at one of them."""
PLACE_PRIOR = tuple(0.5 * 0.3**place for place in range(CLASSES))
"""Accepted children of an accepted node, by class of their place, before anything is counted."""
IMPOSSIBLE = -1e30
"""Log-probability below which a token is impossible."""


@dataclass(frozen=True, eq=False)
class SurvivalCalibration:
    """How often nodes were accepted whose parent was.

    Attributes:
        hits: `[DEPTHS, CLASSES, BINS]` accepted nodes, by depth, class of rank and bin.
        trials: the same of all nodes whose parent was accepted.
    """

    hits: "np.ndarray"
    trials: "np.ndarray"

    @classmethod
    def empty(cls) -> "SurvivalCalibration":
        """Nothing counted yet."""
        return cls(np.zeros((DEPTHS, CLASSES, BINS)), np.zeros((DEPTHS, CLASSES, BINS)))

    def observe(self, tree: DraftTree, path: Sequence[int]) -> "SurvivalCalibration":
        """Count the nodes that a round has judged: those whose parent was accepted.

        Args:
            tree: of one sequence.
            path: accepted nodes, the root first.
        """
        children, paths, accepted = tree.branches[0].children, tree.path_logprobs[0].tolist(), set(path)
        hits, trials = self.hits.copy(), self.trials.copy()
        for depth, parent in enumerate(path):
            for rank, node in enumerate(children[parent]):
                cell = min(depth, DEPTHS - 1), _class(rank), _bin(paths[node] - paths[parent])
                trials[cell] += 1
                hits[cell] += node in accepted
        return SurvivalCalibration(hits, trials)

    def faded(self, limit: float) -> "SurvivalCalibration":
        """The same rates with at most `limit` counts in a cell: what a later text begins with."""
        share = limit / self.trials.clip(limit)
        return SurvivalCalibration(self.hits * share, self.trials * share)

    @cached_property
    def rates(self) -> "np.ndarray":
        """`[DEPTHS, CLASSES, BINS]` probability that a node is accepted if its parent is."""
        pooled = (self.hits.sum(0) + PRIOR_WEIGHT * _prior()) / (self.trials.sum(0) + PRIOR_WEIGHT)
        return (self.hits + POOLED_WEIGHT * pooled) / (self.trials + POOLED_WEIGHT)

    def log_acceptance(self, logprobs: Sequence[float], depth: int, parent: float = 0.0) -> list[float]:
        """The log-probability that siblings are accepted, given that of their parent; it never rises along them.

        Args:
            logprobs: of the draft given the parent, siblings by rank.
            depth: their level, 1 for children of the root.
            parent: the log-probability that the parent is accepted.
        """
        rates, found, lowest = self._log_rates[min(depth, DEPTHS) - 1], [], 0.0
        for rank, logprob in enumerate(logprobs):  # of every level of every round, so nothing is called in here
            place = int(math.sqrt(-logprob) * BIN_SCALE) if IMPOSSIBLE < logprob < 0 else 0
            rate = rates[rank if rank < LAST_RANK else LAST_RANK][place if place < BINS else BINS - 1]
            lowest = rate if rate < lowest else lowest
            found.append(parent + lowest if logprob > IMPOSSIBLE else -math.inf)
        return found

    @cached_property
    def _log_rates(self) -> list[list[list[float]]]:
        """The logarithms of the rates, by level, rank and bin."""
        return np.log(self.rates[:, list(RANKS)]).tolist()

    @cached_property
    def children(self) -> list[list[float]]:
        """By level and class of rank, the accepted children per parent that was accepted and had children.

        A child that was not drafted counts as not accepted, so this is what an expansion has yielded.
        """
        return self._by_place(self.trials[:, :1].sum(2))

    @cached_property
    def places(self) -> list[list[float]]:
        """By level and class of place, the rate at which drawn children were accepted, never rising."""
        return np.minimum.accumulate(self._by_place(self.trials.sum(2)), axis=1).tolist()

    def _by_place(self, trials: "np.ndarray") -> list[list[float]]:
        hits = self.hits.sum(2)
        pooled = (hits.sum(0) + PRIOR_WEIGHT * np.array(PLACE_PRIOR)) / (trials.sum(0) + PRIOR_WEIGHT)
        return ((hits + POOLED_WEIGHT * pooled) / (trials + POOLED_WEIGHT)).tolist()


def next_level(rates: Sequence[Sequence[float]], depth: int) -> Sequence[float]:
    """What holds for the children of nodes on a level, of rates by level."""
    return rates[min(depth, DEPTHS - 1)]


def place_rates(places: Sequence[Sequence[float]], depth: int, count: int) -> list[float]:
    """The rates of so many children of a node, by their places, on a level: `SurvivalCalibration.places` spread out."""
    return [places[min(depth, DEPTHS) - 1][_class(place)] for place in range(count)]


@lru_cache(maxsize=1)
def _prior() -> "np.ndarray":
    """`[CLASSES, BINS]` rates before anything is counted."""
    middles = ((np.arange(BINS) + 0.5) / BIN_SCALE) ** 2
    return 1 / (1 + np.exp(PRIOR_SLOPE * middles - np.array(PRIOR_LOGITS)[:, None]))


def _bin(logprob: float) -> int:
    return min(int(math.sqrt(max(-logprob, 0.0)) * BIN_SCALE), BINS - 1)


def _class(rank: int) -> int:
    return RANKS[min(rank, LAST_RANK)]
