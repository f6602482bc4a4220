"""How many levels to draw for, in trees whose children are drawn at random.

A drawn node stays in its tree, so such trees cannot be cut to a budget afterwards. What may be limited is what is drawn
at all, by numbers that are fixed before the draws: here the number of levels, from how often a level of earlier rounds
was reached and how many nodes it had.
"""

from collections.abc import Callable, Sequence

from drafttree.core.tree import DraftTree

MEMORY = 64.0
"""Trees after which a tree counts 1/e."""
RETRY = 32
"""Rounds after which the limit is left out once, so that deeper levels are seen again."""


class LevelLimit:
    """Counts the levels of earlier trees, and chooses how many the next ones may have."""

    def __init__(self) -> None:
        self._nodes: list[float] = []
        self._reached: list[float] = []
        self._rounds = 0

    def observe(self, tree: DraftTree, accepted: int) -> None:
        """Count a tree, of which so many levels were accepted."""
        counts = [tree.depths.count(level) for level in range(1, tree.depths[-1] + 1)]
        known = len(self._nodes)
        self._nodes += map(float, counts[known:])
        self._reached += [float(accepted > level) for level in range(known, len(counts))]
        for level, count in enumerate(counts):
            self._nodes[level] += (count - self._nodes[level]) / MEMORY
            self._reached[level] += ((accepted > level) - self._reached[level]) / MEMORY

    def choose(
        self, batch: int, rows: int, target: Callable[[int], float], level: Callable[[int], float]
    ) -> int | None:
        """The levels to draft at most in the next round; None for no limit.

        Args:
            batch: requests that are drafted for.
            rows: rows of the target pass without drafted nodes.
            target: the cost of a pass by its rows.
            level: the cost of a draft pass by its nodes.
        """
        self._rounds += 1
        if not self._nodes or self._rounds % RETRY == 0:
            return None
        return best_levels(self._reached, self._nodes, batch, rows, target, level)


def best_levels(
    reached: Sequence[float],
    nodes: Sequence[float],
    batch: int,
    rows: int,
    target: Callable[[int], float],
    level: Callable[[int], float],
) -> int:
    """The number of levels that maximises tokens by time, at least 1; arguments as for `LevelLimit.choose`.

    Args:
        reached: how often a node of each level was accepted.
        nodes: by level, how many nodes a tree has there.
    """
    tokens, drafted, spent, width = float(batch), 0.0, 0.0, float(batch)
    found, best = 1, 0.0
    for depth, (chance, count) in enumerate(zip(reached, nodes, strict=True), start=1):
        spent += level(round(width))
        width = batch * count
        tokens, drafted = tokens + batch * chance, drafted + width
        rate = tokens / (target(rows + round(drafted)) + spent)
        if rate > best:
            found, best = depth, rate
    return found
