"""How likely a drafted token is to be accepted, counted by its level, its rank and the drafter's log-probability of it.

A drafter's probabilities are not acceptance probabilities: at temperature 0, its best token of probability 0.3 is often
the target's best too, and those of a guided draft (coupling) are not probabilities at all. So nodes are sorted into
cells, and of those whose parent was accepted it is counted how many were accepted too. A cell with few counts takes the
rate of its rank and log-probability over all levels. If these are few too, a curve that was fitted beforehand counts
(docs/log.md, 2026-11-22).
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

from drafttree.core.tree import DraftTree

LEVELS = 4
"""Levels that are told apart; the last includes all deeper ones."""
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
"""Prior number of accepted children of an accepted node, by class of their place."""
PRIOR_WEIGHT, POOLED_WEIGHT = 8.0, 48.0
"""Weights as counts: of a prior, and of all levels together in the rate of one level."""
MOST = 128.0
"""The most counts of a cell: at that number they are halved, so that rates follow a text that changes."""
CARRIED = 32.0
"""The most counts of a cell that a later text takes over, since it may be of another kind."""
IMPOSSIBLE = -1e30
"""Tokens of a lower log-probability count as impossible."""


class Grown(Protocol):
    """The part of a tree, finished or not, that `chances` reads: nodes level by level, siblings in order of rank."""

    @property
    def parents(self) -> Sequence[int]: ...
    @property
    def path_logprobs(self) -> Sequence[float]: ...


class Acceptance:
    """Counts how often nodes were accepted whose parent was accepted, for one kind of drafts."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int, int], list[float]] = {}  # accepted and judged, by level, class and bin
        self._sums = [[[0.0, 0.0] for _ in range(CLASSES)] for _ in range(LEVELS)]  # the same without bins
        self._logs: dict[tuple[int, int, int], float] = {}  # logarithms of the rates that were asked for

    def copy(self, most: float = CARRIED) -> "Acceptance":
        """A copy with the same rates, but at most `most` counts per cell."""
        acceptance = Acceptance()
        for cell, (hits, trials) in self._cells.items():
            share = most / max(trials, most)
            acceptance._count(cell, share * hits, share * trials)
        return acceptance

    @property
    def judged(self) -> float:
        """The number of nodes that count at present."""
        return sum(trials for _, trials in self._cells.values())

    def observe(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Count the nodes that a round has judged, which are those whose parent was accepted.

        Args:
            tree: the tree that was verified.
            path: accepted nodes, the root first.
        """
        paths = tree.path_logprobs
        accepted = {*path}
        for depth, parent in enumerate(path):
            for rank, node in enumerate(tree.children[parent]):
                cell = min(depth, LEVELS - 1), _class(rank), _bin(paths[node] - paths[parent])
                self._count(cell, node in accepted, 1.0)
                hits, trials = self._cells[cell]
                if trials >= MOST:
                    self._count(cell, -hits / 2, -trials / 2)
                for level in range(LEVELS):
                    self._logs.pop((level, *cell[1:]), None)

    def chances(self, tree: Grown, known: list[float] | None = None) -> list[float]:
        """Log-probabilities that nodes are accepted: 0 for the root, and never above a parent's or earlier sibling's.

        Args:
            tree: the tree, finished or not.
            known: the result for the first nodes, which is extended and returned; None if there is none.
        """
        known = [0.0] if known is None else known
        parents = tree.parents
        paths = tree.path_logprobs
        depths = _depths(parents)
        parent = -1
        rank = 0
        min_rate = 0.0
        for node in range(len(known), len(parents)):
            if parents[node] != parent:
                parent = parents[node]
                rank = 0
                min_rate = 0.0
            logprob = paths[node] - paths[parent]
            if logprob > IMPOSSIBLE:
                cell = min(depths[node], LEVELS) - 1, _class(rank), _bin(logprob)
                if (rate := self._logs.get(cell)) is None:
                    rate = self._logs[cell] = math.log(self._rate(cell))
                min_rate = min(min_rate, rate)
                known.append(known[parent] + min_rate)
            else:
                known.append(-math.inf)
            rank += 1
        return known

    def children(self, depth: int) -> list[float]:
        """Expected accepted children of an accepted node at this depth if it is expanded, by class of rank."""
        level = min(depth, LEVELS - 1)
        return [self._shared_rate(level, rank_class, of=0) for rank_class in range(CLASSES)]

    def places(self, depth: int, count: int) -> list[float]:
        """Rates at which the first, second ... drawn child at this depth is accepted if its parent is; never rising."""
        level = min(depth, LEVELS) - 1
        rates = [
            *accumulate((self._shared_rate(level, rank_class, of=rank_class) for rank_class in range(CLASSES)), min)
        ]
        return [rates[_class(draw_index)] for draw_index in range(count)]

    def _count(self, cell: tuple[int, int, int], hits: float, trials: float) -> None:
        for counts in (self._cells.setdefault(cell, [0.0, 0.0]), self._sums[cell[0]][cell[1]]):
            counts[0] += hits
            counts[1] += trials

    def _rate(self, cell: tuple[int, int, int]) -> float:
        level_counts = [self._cells.get((level, *cell[1:]), (0.0, 0.0)) for level in range(LEVELS)]
        hits = sum(counts[0] for counts in level_counts)
        trials = sum(counts[1] for counts in level_counts)
        pooled_rate = _shrunk(hits, trials, PRIOR[cell[1]][cell[2]], PRIOR_WEIGHT)
        return _shrunk(level_counts[cell[0]][0], level_counts[cell[0]][1], pooled_rate, POOLED_WEIGHT)

    def _shared_rate(self, level: int, kind: int, *, of: int) -> float:
        """Accepted nodes of class `kind` per judged node of class `of`, whatever their log-probabilities."""
        hits = sum(row[kind][0] for row in self._sums)
        trials = sum(row[of][1] for row in self._sums)
        pooled_rate = _shrunk(hits, trials, PLACE_PRIOR[kind], PRIOR_WEIGHT)
        return _shrunk(self._sums[level][kind][0], self._sums[level][of][1], pooled_rate, POOLED_WEIGHT)


def _shrunk(hits: float, trials: float, expected: float, weight: float) -> float:
    """The rate `hits / trials`, with `weight` further trials at the expected rate."""
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
