"""Decides while the trees of a batch grow which nodes are worth another draft pass, over all requests together."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from drafttree.core.cost_curve import Costs
from drafttree.engine.growing_tree import GrowingTree
from drafttree.policies.calibration import SurvivalCalibration, next_level
from drafttree.policies.tree_value import best_width

NODES_A_ROW, MORE_NODES = 4, 64
"""Drafted nodes that are weighed at most: so many for each row of the pass without them, and some more."""
WIDEST = 256
"""Frontier over all requests whose draft pass is weighed at most."""


@dataclass(frozen=True)
class NodeCosts:
    """What a node and a draft pass have to earn.

    Attributes:
        target: the cost of a target pass by its rows.
        level: the cost of a draft pass by its nodes.
        rows: rows of the target pass without drafted nodes.
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
        costs: what a node has to earn.
    """

    def __init__(self, calibrations: Sequence[SurvivalCalibration], costs: NodeCosts) -> None:
        self._calibrations, self._costs = calibrations, costs
        self._chances: list[list[float]] = [[0.0] for _ in calibrations]
        self._drafted: list[float] = []

    def expand(self, texts: Sequence[GrowingTree], depth: int) -> list[list[int]]:
        """Which frontier nodes are worth a draft pass, per tree; see `tree_growth.Gate`."""
        for own, calibration, text in zip(self._chances, self._calibrations, texts, strict=True):
            own += self._level(own, calibration, text, depth)
        leaves = [
            (own[node], -sequence, -node)
            for sequence, (own, text) in enumerate(zip(self._chances, texts, strict=True))
            for node in text.frontier
        ]
        chosen, found = sorted(leaves, reverse=True), [list[int]() for _ in texts]
        for _, sequence, node in chosen[: self._width([math.exp(chance) for chance, *_ in chosen], depth)]:
            found[-sequence].append(-node)
        return [sorted(nodes) for nodes in found]

    def _width(self, leaves: list[float], depth: int) -> int:
        """How many of the frontier's nodes to expand."""
        yields = [next_level(calibration.children, depth) for calibration in self._calibrations]
        children = [sum(rates) / len(yields) for rates in zip(*yields, strict=True)]
        costs = self._costs
        return best_width(leaves[:WIDEST], self._drafted, children, costs.passes, costs.levels, costs.rate, costs.least)

    def _level(
        self, known: Sequence[float], calibration: SurvivalCalibration, text: GrowingTree, depth: int
    ) -> list[float]:
        """The log-probabilities that the nodes of a tree's newest level are accepted, siblings by rank."""
        families: dict[int, list[int]] = {}
        for node in range(text.first, text.size):
            families.setdefault(text.parents[node], []).append(node)
        found, paths = [0.0] * (text.size - text.first), text.path_logprobs
        for parent, nodes in families.items():
            own = [paths[node] - paths[parent] for node in nodes]
            for node, chance in zip(nodes, calibration.log_acceptance(own, depth, known[parent]), strict=True):
                found[node - text.first] = chance
        self._drafted += map(math.exp, found)
        return found
