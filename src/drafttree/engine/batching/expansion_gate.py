"""Decides while the trees of a batch grow which nodes are worth another draft pass, over all requests together."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from drafttree.core.cost_curve import Costs
from drafttree.core.tree import TreeBuilder
from drafttree.engine.tree_growth import Frontier
from drafttree.policies.calibration import SurvivalCalibration, next_level
from drafttree.policies.tree_value import best_width

NODES_A_ROW, MORE_NODES = 4, 64
"""Drafted nodes that are weighed at most: so many for each row of the pass without them, and some more."""
WIDEST = 256
"""Frontier over all requests whose draft pass is weighed at most."""


@dataclass(frozen=True)
class Rates:
    """What a node and a draft pass have to earn.

    Attributes:
        target: the cost of a target pass by its rows.
        level: the cost of a draft pass by its nodes.
        rows: of the target pass without drafted nodes.
        rate: tokens by time that the batch reaches.
    """

    target: Callable[[int], float]
    level: Callable[[int], float]
    rows: int
    rate: float

    @cached_property
    def passes(self) -> list[float]:
        """The cost of target passes by how many nodes are drafted, one more than that as `best_size` counts."""
        most = NODES_A_ROW * self.rows + MORE_NODES
        return [0.0, *(self.target(self.rows + drafted) for drafted in range(most + 1))]

    @cached_property
    def levels(self) -> Costs:
        """The cost of draft passes by their width."""
        widths = [1 << power for power in range(WIDEST.bit_length())]
        return Costs.of({width: self.level(width) for width in widths})

    @cached_property
    def least(self) -> float:
        """The probability below which no node is worth its row."""
        near = self.passes[1 : 1 + 2 * self.rows + 8]
        return self.rate * min(after - before for before, after in pairwise(near))


class ExpansionGate:
    """Narrows the frontiers of a batch while it is drafted for; one gate serves one round.

    Args:
        calibrations: per sequence.
        rates: what a node has to earn.
    """

    def __init__(self, calibrations: Sequence[SurvivalCalibration], rates: Rates) -> None:
        self._calibrations, self._rates = calibrations, rates
        self._chances: list[list[float]] = [[0.0] for _ in calibrations]
        self._paths: list[list[float]] = [[0.0] for _ in calibrations]
        self._drafted: list[float] = []

    def expand(self, tree: TreeBuilder, frontier: Frontier, depth: int) -> Tensor | None:
        """Which frontier nodes are worth a draft pass.

        Args:
            tree: with the level whose nodes are the frontier.
            frontier: `[batch, width]`.
            depth: of that level.

        Returns:
            Bool `[batch, width]`.
        """
        self._count(tree, depth)
        valid = frontier.path_logprobs.isfinite().tolist()
        leaves = [
            (self._chances[sequence][node], -sequence, -place)
            for sequence, nodes in enumerate(frontier.nodes.tolist())
            for place, node in enumerate(nodes)
            if valid[sequence][place]
        ]
        chosen = sorted(leaves, reverse=True)
        mask = torch.zeros_like(frontier.nodes, dtype=torch.bool)
        for _, sequence, place in chosen[: self._width([math.exp(chance) for chance, *_ in chosen], depth)]:
            mask[-sequence, -place] = True
        return mask

    def _width(self, leaves: list[float], depth: int) -> int:
        """How many of the frontier's nodes to expand."""
        yields = [next_level(calibration.children, depth) for calibration in self._calibrations]
        children = [sum(rates) / len(yields) for rates in zip(*yields, strict=True)]
        rates = self._rates
        return best_width(leaves[:WIDEST], self._drafted, children, rates.passes, rates.levels, rates.rate, rates.least)

    def _count(self, tree: TreeBuilder, depth: int) -> None:
        """Note how likely the nodes of the newest level are to be accepted."""
        _, parents, paths, _ = tree.levels[-1]
        start = tree.size - paths.shape[1]  # padding at the end of the level before may have been trimmed since
        for sequence, (above, own) in enumerate(zip(parents.tolist(), paths.tolist(), strict=True)):
            chances = self._level(sequence, above, own, depth)
            self._chances[sequence][start:] = chances
            self._paths[sequence][start:] = own
            self._drafted += [math.exp(chance) for chance in chances]

    def _level(self, sequence: int, parents: Sequence[int], paths: Sequence[float], depth: int) -> list[float]:
        """The log-probabilities that nodes of a level are accepted, siblings by rank; -inf for padding."""
        families: dict[int, list[int]] = {}
        for node, parent in enumerate(parents):
            families.setdefault(parent, []).append(node)
        found = [-math.inf] * len(parents)
        for parent, nodes in families.items():
            own = [paths[node] - self._paths[sequence][parent] for node in nodes]
            chance = self._chances[sequence][parent]
            for node, each in zip(nodes, self._calibrations[sequence].log_acceptance(own, depth, chance), strict=True):
                found[node] = each
        return found
