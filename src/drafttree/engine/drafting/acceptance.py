"""Estimates how likely a drafted token is accepted, by its level, its rank and the drafter's log-probability.

A drafter's probabilities are not acceptance probabilities. At temperature 0, the drafter's best token with probability
0.3 is often the target's best token too. Scores of a guided draft (coupling) are not probabilities at all. So nodes are
sorted into cells by level, rank and log-probability. Each cell counts the nodes whose parent was accepted, and how many
of these were accepted too. The rate of a cell with few counts tends to that of the same rank and log-probability on all
levels. That rate tends to a curve which was fitted beforehand (docs/log.md, 2026-11-22).
"""

import math
from collections.abc import Sequence
from typing import Protocol

from drafttree.core.tree import DraftTree

LEVELS = 4
"""Number of levels with counts of their own; the last includes all deeper levels."""
RANKS = 0, 1, 2, 3, 3, 3, 4
"""The class of each rank among siblings; the last includes all further ranks."""
CLASSES = RANKS[-1] + 1
BINS, BIN_SCALE = 16, 6
"""Bins of a log-probability l: the integer part of `BIN_SCALE` * sqrt(-l), so bins are finest near 0."""
PRIOR = [
    [1 / (1 + math.exp(1.3 * ((place + 0.5) / BIN_SCALE) ** 2 - odds)) for place in range(BINS)]
    for odds in (2.0, 1.3, 1.1, 1.1, 1.0)
]
"""Prior acceptance rates by class and bin, fitted to the embedded drafters at temperatures 0 and 1."""
PLACE_PRIOR = [0.5 * 0.3**place for place in range(CLASSES)]
"""Prior number of accepted children of an accepted node, by class of the children's rank."""
PRIOR_WEIGHT, POOLED_WEIGHT = 8.0, 48.0
"""Weights in counts: of the prior in the rate over all levels, and of that rate in the rate of one level."""
MAX_COUNTS = 128.0
"""At this many counts, the counts of a cell are halved, so that rates follow a text that changes."""
CARRIED_COUNTS = 32.0
"""A later text takes over at most this many counts of a cell, since it may be of another kind."""
IMPOSSIBLE = -1e30
"""Tokens with a lower log-probability count as impossible."""
Cell = tuple[int, int, int]
"""A cell of nodes: level, class of the rank, and bin of the log-probability."""


class GrownNodes(Protocol):
    """The nodes of a tree, finished or growing: level by level, siblings in order of rank."""

    @property
    def parents(self) -> Sequence[int]: ...
    @property
    def path_logprobs(self) -> Sequence[float]: ...


class Acceptance:
    """Counts, for one kind of drafts, how many of the nodes with an accepted parent were accepted."""

    def __init__(self) -> None:
        self._cells: dict[Cell, list[float]] = {}  # per cell, the counts of accepted and of judged nodes
        self._sums = [[[0.0, 0.0] for _ in range(CLASSES)] for _ in range(LEVELS)]  # the same, over all bins
        self._log_rates: dict[Cell, float] = {}  # cache of logarithms of rates

    def copy(self, max_counts: float = CARRIED_COUNTS) -> "Acceptance":
        """A copy with the same rates, but at most `max_counts` counts per cell."""
        acceptance = Acceptance()
        for cell, (hits, trials) in self._cells.items():
            share = max_counts / max(trials, max_counts)
            acceptance._count(cell, share * hits, share * trials)
        return acceptance

    @property
    def judged(self) -> float:
        """Number of judged nodes in the counts."""
        return sum(trials for _, trials in self._cells.values())

    def observe(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Count the nodes that a round has judged: those with an accepted parent.

        Args:
            tree: the tree that was verified.
            path: accepted nodes, the root first.
        """
        path_logprobs = tree.path_logprobs
        accepted_nodes = {*path}
        for depth, parent in enumerate(path):
            for rank, node in enumerate(tree.children[parent]):
                cell = _cell(depth, rank, path_logprobs[node] - path_logprobs[parent])
                self._count(cell, node in accepted_nodes, 1.0)
                hits, trials = self._cells[cell]
                if trials >= MAX_COUNTS:
                    self._count(cell, -hits / 2, -trials / 2)
                for pooled_cell in _all_levels(cell):
                    self._log_rates.pop(pooled_cell, None)

    def chances(self, tree: GrownNodes, known_chances: list[float] | None = None) -> list[float]:
        """Log-probabilities that nodes are accepted.

        The root's is 0. No node's is above its parent's or an earlier sibling's.

        Args:
            tree: the tree.
            known_chances: an earlier result for the first nodes, which is extended in place; None to begin.
        """
        chances = [0.0] if known_chances is None else known_chances
        parents = tree.parents
        path_logprobs = tree.path_logprobs
        depths = _depths(parents)
        parent = -1
        rank = 0
        sibling_rate = 0.0  # the lowest log-rate among the earlier siblings
        for node in range(len(chances), len(parents)):
            if parents[node] != parent:
                parent = parents[node]
                rank = 0
                sibling_rate = 0.0
            logprob = path_logprobs[node] - path_logprobs[parent]
            if logprob > IMPOSSIBLE:
                rate = self._log_rate(_cell(depths[parent], rank, logprob))
                sibling_rate = min(sibling_rate, rate)
                chances.append(chances[parent] + sibling_rate)
            else:
                chances.append(-math.inf)
            rank += 1
        return chances

    def children(self, depth: int) -> list[float]:
        """By class of rank, the expected number of accepted children if an accepted node at this depth is expanded."""
        level = min(depth, LEVELS - 1)
        return [self._shared_rate(level, rank_class, of=0) for rank_class in range(CLASSES)]

    def drawn_rates(self, depth: int, count: int) -> list[float]:
        """Rates at which the first, second ... drawn child at this depth is accepted if its parent is; never rising."""
        level = min(depth, LEVELS) - 1
        class_rates = list[float]()
        least_rate = math.inf
        for rank_class in range(CLASSES):
            least_rate = min(least_rate, self._shared_rate(level, rank_class, of=rank_class))
            class_rates.append(least_rate)
        return [class_rates[_class(rank)] for rank in range(count)]

    def _count(self, cell: Cell, hits: float, trials: float) -> None:
        level, rank_class, _ = cell
        for counts in (self._cells.setdefault(cell, [0.0, 0.0]), self._sums[level][rank_class]):
            counts[0] += hits
            counts[1] += trials

    def _log_rate(self, cell: Cell) -> float:
        if cell not in self._log_rates:
            self._log_rates[cell] = math.log(self._rate(cell))
        return self._log_rates[cell]

    def _rate(self, cell: Cell) -> float:
        """Accepted nodes of a cell per judged node."""
        _, rank_class, logprob_bin = cell
        pooled_hits = 0.0
        pooled_trials = 0.0
        for pooled_cell in _all_levels(cell):
            hits, trials = self._cells.get(pooled_cell, (0.0, 0.0))
            pooled_hits += hits
            pooled_trials += trials
        pooled_rate = _shrunk(pooled_hits, pooled_trials, PRIOR[rank_class][logprob_bin], PRIOR_WEIGHT)
        hits, trials = self._cells.get(cell, (0.0, 0.0))
        return _shrunk(hits, trials, pooled_rate, POOLED_WEIGHT)

    def _shared_rate(self, level: int, rank_class: int, *, of: int) -> float:
        """Accepted nodes of rank class `rank_class` per judged node of rank class `of`, over all bins."""
        pooled_hits = 0.0
        pooled_trials = 0.0
        for counts_by_class in self._sums:
            pooled_hits += counts_by_class[rank_class][0]
            pooled_trials += counts_by_class[of][1]
        pooled_rate = _shrunk(pooled_hits, pooled_trials, PLACE_PRIOR[rank_class], PRIOR_WEIGHT)
        hits, _ = self._sums[level][rank_class]
        _, trials = self._sums[level][of]
        return _shrunk(hits, trials, pooled_rate, POOLED_WEIGHT)


def _cell(parent_depth: int, rank: int, logprob: float) -> Cell:
    """The cell of a node.

    Args:
        parent_depth: depth of its parent; the root has depth 0.
        rank: its rank among its siblings, from 0.
        logprob: the drafter's log-probability of its token.
    """
    return min(parent_depth, LEVELS - 1), _class(rank), _bin(logprob)


def _all_levels(cell: Cell) -> list[Cell]:
    """The cells of the same class and bin on every level."""
    _, rank_class, logprob_bin = cell
    return [(level, rank_class, logprob_bin) for level in range(LEVELS)]


def _shrunk(hits: float, trials: float, expected: float, weight: float) -> float:
    """The rate `hits / trials` after `weight` further trials at the expected rate."""
    return (hits + weight * expected) / (trials + weight)


def _depths(parents: Sequence[int]) -> list[int]:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


def _class(rank: int) -> int:
    return RANKS[min(rank, len(RANKS) - 1)]


def _bin(logprob: float) -> int:
    return min(int(math.sqrt(max(-logprob, 0.0)) * BIN_SCALE), BINS - 1)
