"""Survival calibration: the probability that a drafted token is accepted, from what the drafter says of it.

A drafter's probabilities are not acceptance probabilities. At temperature 0 a token is accepted if it is the target's
best, which the drafter's best token of probability 0.3 often is; and with a guided draft (coupling) the numbers are no
probabilities of anything. So nodes are sorted into cells by depth, rank and the drafter's log-probability, and in each
cell it is counted how many of those whose parent was accepted were accepted themselves. A cell with few counts follows
the cells of the same rank and log-probability at all depths, and those follow a curve fitted beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import DraftTree

DEPTHS = 4
"""Levels told apart; the last stands for all deeper ones."""
RANKS = (0, 1, 2, 3, 3, 3, 4)
"""The class of each rank among siblings; the last stands for all further ones."""
CLASSES = RANKS[-1] + 1
BINS, BIN_SCALE = 16, 6.0
"""Bins of the log-probability l: the whole part of `BIN_SCALE` times the root of -l, so they are finest near 0."""
PRIOR_LOGITS, PRIOR_SLOPE = (2.0, 1.3, 1.1, 1.1, 1.0), 1.3
"""The log-odds of acceptance before anything is counted: one number for each class of ranks, plus the slope times the
log-probability. Fitted to the embedded drafters at temperatures 0 and 1 (docs/log.md, 2026-11-22)."""
PRIOR_WEIGHT, POOLED_WEIGHT = 4.0, 12.0
"""Counts that the fitted curve stands for, and counts that all depths together stand for at one of them."""
SLOT_PRIOR, SLOT_RATIO = 0.5, 0.3
"""Acceptance of a first child before anything is counted, and of each further one in terms of the one before."""


@dataclass(frozen=True)
class SurvivalCalibration:
    """How often nodes were accepted whose parent was.

    Attributes:
        hits: float32 `[DEPTHS, CLASSES, BINS]`, on the CPU: accepted nodes, by depth, class of rank and bin.
        trials: the same: all nodes whose parent was accepted.
    """

    hits: Tensor
    trials: Tensor

    @classmethod
    def empty(cls) -> "SurvivalCalibration":
        """Nothing counted yet."""
        return cls(torch.zeros(DEPTHS, CLASSES, BINS), torch.zeros(DEPTHS, CLASSES, BINS))

    def observe(self, tree: DraftTree, path: Sequence[int]) -> "SurvivalCalibration":
        """Count the nodes that a round has judged: those whose parent was accepted.

        Args:
            tree: of one sequence.
            path: accepted nodes, the root first.
        """
        children = tree.branches[0].children
        judged = [
            (node, depth, rank) for depth, parent in enumerate(path) for rank, node in enumerate(children[parent])
        ]
        if not judged:
            return self
        nodes, depths, ranks = zip(*judged, strict=True)
        accepted = set(path)
        bins = _bins(tree.node_logprobs[0, list(nodes)].cpu())
        cells = (
            torch.tensor([min(depth, DEPTHS - 1) for depth in depths]),
            torch.tensor([_class(rank) for rank in ranks]),
            bins,
        )
        hits = torch.tensor([float(node in accepted) for node in nodes])
        return SurvivalCalibration(
            self.hits.index_put(cells, hits, accumulate=True),
            self.trials.index_put(cells, torch.ones_like(hits), accumulate=True),
        )

    def faded(self, limit: float) -> "SurvivalCalibration":
        """The same rates with at most `limit` counts in a cell: what a later text begins with."""
        share = limit / self.trials.clamp_min(limit)
        return SurvivalCalibration(self.hits * share, self.trials * share)

    @cached_property
    def table(self) -> Tensor:
        """`[DEPTHS, CLASSES, BINS]` log-probability that a node is accepted if its parent is."""
        middles = ((torch.arange(BINS) + 0.5) / BIN_SCALE) ** 2
        prior = (torch.tensor(PRIOR_LOGITS)[:, None] - PRIOR_SLOPE * middles).sigmoid()
        pooled = (self.hits.sum(0) + PRIOR_WEIGHT * prior) / (self.trials.sum(0) + PRIOR_WEIGHT)
        return ((self.hits + POOLED_WEIGHT * pooled) / (self.trials + POOLED_WEIGHT)).log()

    def log_acceptance(self, logprobs: Tensor, depth: int) -> Tensor:
        """The log-probability that candidates are accepted if their parents are, never rising along siblings.

        Args:
            logprobs: `[..., frontier, candidates]` of the draft given the parent, candidates by rank.
            depth: level the candidates would join, 1 for children of the root.
        """
        classes = torch.tensor(list(map(_class, range(logprobs.shape[-1]))), device=logprobs.device)
        table = self.table[min(depth, DEPTHS) - 1].to(logprobs.device)
        return table[classes, _bins(logprobs)].cummin(-1).values

    @cached_property
    def children(self) -> list[list[float]]:
        """By level and class of rank, the accepted children per parent that was accepted and had children.

        A child that was not drafted counts as not accepted, so this is what an expansion has yielded.
        """
        pooled_hits, pooled_parents = self.hits.sum((0, 2)), self.trials[:, 0].sum()
        first = torch.tensor([SLOT_PRIOR * SLOT_RATIO**rank for rank in range(CLASSES)])
        pooled = (pooled_hits + PRIOR_WEIGHT * first) / (pooled_parents + PRIOR_WEIGHT)
        parents = self.trials[:, 0].sum(1, keepdim=True)
        return ((self.hits.sum(2) + POOLED_WEIGHT * pooled) / (parents + POOLED_WEIGHT)).tolist()

    @cached_property
    def slots(self) -> list[list[float]]:
        """By level and class of drawing order, the rate at which drawn children were accepted, never rising."""
        first = torch.tensor([SLOT_PRIOR * SLOT_RATIO**rank for rank in range(CLASSES)])
        hits, trials = self.hits.sum(2), self.trials.sum(2)
        pooled = (hits.sum(0) + PRIOR_WEIGHT * first) / (trials.sum(0) + PRIOR_WEIGHT)
        return ((hits + POOLED_WEIGHT * pooled) / (trials + POOLED_WEIGHT)).cummin(1).values.tolist()


def next_level(rates: Sequence[Sequence[float]], depth: int) -> Sequence[float]:
    """What holds for the children of nodes on a level, of rates by level."""
    return rates[min(depth, DEPTHS - 1)]


def slot_rates(slots: Sequence[Sequence[float]], depth: int, count: int) -> list[float]:
    """The rates of so many children of a node, by their places, on a level: `SurvivalCalibration.slots` spread out."""
    return [slots[min(depth, DEPTHS) - 1][_class(rank)] for rank in range(count)]


def _bins(logprobs: Tensor) -> Tensor:
    """The bin of each log-probability."""
    largest = (BINS - 0.5) / BIN_SCALE
    return (logprobs.neg().clamp(0, largest**2).sqrt_() * BIN_SCALE).long()


def _class(rank: int) -> int:
    return RANKS[min(rank, len(RANKS) - 1)]
