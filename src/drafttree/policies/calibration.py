"""Survival calibration: the probability that a drafted token is accepted, from what the drafter says of it.

A drafter's probabilities are not acceptance probabilities. At temperature 0 a token is accepted if it is the target's
best, which the drafter's best token of probability 0.3 often is; and with a guided draft (coupling) the numbers are no
probabilities of anything. So nodes are sorted into cells by depth, rank and the drafter's log-probability, and in each
cell it is counted how many of those whose parent was accepted were accepted themselves. A cell with few counts follows
the cells of the same rank and log-probability at all depths, and those follow a curve fitted beforehand.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

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
PRIOR_WEIGHT, POOLED_WEIGHT = 8.0, 48.0
"""Counts that the fitted curve stands for, and counts that all depths together stand for at one of them."""
PLACE_PRIOR = tuple(0.5 * 0.3**place for place in range(CLASSES))
"""Accepted children of an accepted node, by class of their place, before anything is counted."""
IMPOSSIBLE = -1e30
"""Log-probability below which a token is impossible."""
Cell = tuple[int, int, int]
"""Level from 0, class of rank, and bin."""


@dataclass(frozen=True, eq=False)
class SurvivalCalibration:
    """How often nodes were accepted whose parent was.

    Plain numbers, not tensors: of every round a few cells are counted and a few are read.

    Attributes:
        hits: accepted nodes by cell; a cell without any may be missing.
        trials: the same of all nodes whose parent was accepted.
    """

    hits: Mapping[Cell, float]
    trials: Mapping[Cell, float]

    @classmethod
    def empty(cls) -> "SurvivalCalibration":
        """Nothing counted yet."""
        return cls({}, {})

    def observe(self, tree: DraftTree, path: Sequence[int]) -> "SurvivalCalibration":
        """Count the nodes that a round has judged: those whose parent was accepted.

        Args:
            tree: the tree that was judged.
            path: accepted nodes, the root first.
        """
        children, paths, accepted = tree.children, tree.path_logprobs, set(path)
        hits, trials, changed = dict(self.hits), dict(self.trials), set[tuple[int, int]]()
        for depth, parent in enumerate(path):
            for rank, node in enumerate(children[parent]):
                cell = min(depth, DEPTHS - 1), _class(rank), _bin(paths[node] - paths[parent])
                changed.add(cell[1:])
                trials[cell] = trials.get(cell, 0.0) + 1
                if node in accepted:
                    hits[cell] = hits.get(cell, 0.0) + 1
        after = SurvivalCalibration(hits, trials)
        after._log_rates.update((cell, rate) for cell, rate in self._log_rates.items() if cell[1:] not in changed)
        return after

    def faded(self, limit: float) -> "SurvivalCalibration":
        """The same rates with at most `limit` counts in a cell: what a later text begins with."""
        shares = {cell: limit / max(count, limit) for cell, count in self.trials.items()}
        hits, trials = (
            {cell: shares[cell] * count for cell, count in counts.items()} for counts in (self.hits, self.trials)
        )
        return SurvivalCalibration(hits, trials)

    def rate(self, cell: Cell) -> float:
        """The probability that a node of a cell is accepted if its parent is."""
        _, kind, place = cell
        levels = [(level, kind, place) for level in range(DEPTHS)]
        hits, trials = (sum(counts.get(each, 0.0) for each in levels) for counts in (self.hits, self.trials))
        pooled = _shrunk(hits, trials, _prior()[kind][place], PRIOR_WEIGHT)
        return _shrunk(self.hits.get(cell, 0.0), self.trials.get(cell, 0.0), pooled, POOLED_WEIGHT)

    def log_acceptance(self, logprobs: Sequence[float], depth: int, parent: float = 0.0) -> list[float]:
        """The log-probability that siblings are accepted, given that of their parent; it never rises along them.

        Args:
            logprobs: the draft's log-probabilities given the parent, siblings by rank.
            depth: their level, 1 for children of the root.
            parent: the log-probability that the parent is accepted.
        """
        rates, level, found, lowest = self._log_rates, min(depth, DEPTHS) - 1, [], 0.0
        for rank, logprob in enumerate(logprobs):
            if not logprob > IMPOSSIBLE:
                found.append(-math.inf)
                continue
            cell = level, _class(rank), _bin(logprob)
            if cell not in rates:
                rates[cell] = math.log(self.rate(cell))
            lowest = min(lowest, rates[cell])
            found.append(parent + lowest)
        return found

    @cached_property
    def _log_rates(self) -> dict[Cell, float]:
        """The logarithms of the rates that were asked for."""
        return {}

    @cached_property
    def children(self) -> list[list[float]]:
        """By level and class of rank, the accepted children per parent that was accepted and had children.

        A child that was not drafted counts as not accepted, so this is what an expansion has yielded.
        """
        return self._by_place([[each[0]] * CLASSES for each in _sums(self.trials)])

    @cached_property
    def places(self) -> list[list[float]]:
        """By level and class of place, the rate at which drawn children were accepted, never rising."""
        return [list(accumulate(rates, min)) for rates in self._by_place(_sums(self.trials))]

    def _by_place(self, trials: Sequence[Sequence[float]]) -> list[list[float]]:
        hits = _sums(self.hits)
        pooled = [
            _shrunk(sum(accepted), sum(judged), prior, PRIOR_WEIGHT)
            for accepted, judged, prior in zip(
                zip(*hits, strict=True), zip(*trials, strict=True), PLACE_PRIOR, strict=True
            )
        ]
        return [
            [_shrunk(*counts, POOLED_WEIGHT) for counts in zip(accepted, judged, pooled, strict=True)]
            for accepted, judged in zip(hits, trials, strict=True)
        ]


def _shrunk(hits: float, trials: float, expected: float, weight: float) -> float:
    """A rate that begins as the expected one, which stands for so many trials."""
    return (hits + weight * expected) / (trials + weight)


def _sums(counts: Mapping[Cell, float]) -> list[list[float]]:
    """By level and class of rank, the counts of all bins."""
    sums = [[0.0] * CLASSES for _ in range(DEPTHS)]
    for (level, kind, _), count in counts.items():
        sums[level][kind] += count
    return sums


def next_level(rates: Sequence[Sequence[float]], depth: int) -> Sequence[float]:
    """The rates of the children of nodes on a level, given the rates by level."""
    return rates[min(depth, DEPTHS - 1)]


def place_rates(places: Sequence[Sequence[float]], depth: int, count: int) -> list[float]:
    """The rates of so many children of a node, by their places, on a level: `SurvivalCalibration.places` spread out."""
    return [places[min(depth, DEPTHS) - 1][_class(place)] for place in range(count)]


@lru_cache(maxsize=1)
def _prior() -> list[list[float]]:
    """By class of rank and bin, the rates before anything is counted."""
    middles = [((place + 0.5) / BIN_SCALE) ** 2 for place in range(BINS)]
    return [[1 / (1 + math.exp(PRIOR_SLOPE * middle - logit)) for middle in middles] for logit in PRIOR_LOGITS]


def _bin(logprob: float) -> int:
    return min(int(math.sqrt(max(-logprob, 0.0)) * BIN_SCALE), BINS - 1)


def _class(rank: int) -> int:
    return RANKS[min(rank, len(RANKS) - 1)]
