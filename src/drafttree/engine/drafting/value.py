"""The controller's law as pure functions: expected tokens minus the time they take at the current rate.

    rate = (texts + sum of chances of drafted nodes) / (target pass over rows + nodes, draft passes, the rest)

This ratio is largest where tokens - rate * cost is, if the rate is the largest ratio itself (Dinkelbach 1967). So a
node pays if its chance exceeds the rate times the cost of its row, and a level if its best nodes pay its draft pass.
All costs are in one unit, which is seconds if they were measured; rates are tokens per unit.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise


def best_count(chances: Sequence[float], costs: Sequence[float], rate: float) -> tuple[int, float]:
    """The number of drafted nodes that is worth most to verify, and its value in tokens.

    Args:
        chances: per node, the probability that it is accepted, in falling order.
        costs: costs of target passes with 0, 1, 2 ... drafted nodes.
        rate: tokens per unit of cost.
    """
    count, value = 0, -rate * costs[0]
    tokens = 0.0
    for nodes, (chance, cost) in enumerate(zip(chances, costs[1:], strict=False), start=1):
        tokens += chance
        if tokens - rate * cost > value:
            count, value = nodes, tokens - rate * cost
    return count, value


def best_width(
    leaves: Sequence[float],
    chances: Sequence[float],
    children: Sequence[float],
    costs: Sequence[float],
    level: Callable[[int], float],
    rate: float,
) -> int:
    """The number of newest nodes that is worth most to expand, 0 if another level does not pay.

    Widths are tried doubling, up to all of them, until the value falls.

    Args:
        leaves: probabilities that the newest nodes are accepted, in falling order.
        chances: the same for all drafted nodes, the newest included, in any order.
        children: by rank, the expected number of accepted children of an accepted node.
        costs: as for `best_count`.
        level: the cost of a draft pass by its width.
        rate: tokens per unit of cost.
    """
    widths = _paying_widths(leaves, sum(children), level, rate)
    if not widths:  # most levels end here: not even free rows would pay them
        return 0
    min_chance = rate * min((cost - previous_cost for previous_cost, cost in pairwise(costs)), default=0.0)
    node_chances = sorted((chance for chance in chances if chance >= min_chance), reverse=True)
    chosen_width = 0
    _, best_value = best_count(node_chances, costs, rate)
    for width in widths:
        child_chances = _child_chances(leaves[:width], children, min_chance)
        _, value = best_count(sorted([*node_chances, *child_chances], reverse=True), costs, rate)
        value -= rate * level(width)
        if value > best_value:
            chosen_width = width
            best_value = value
        elif chosen_width:
            break
    return chosen_width


def _paying_widths(leaves: Sequence[float], child_sum: float, level: Callable[[int], float], rate: float) -> list[int]:
    """The widths 1, 2, 4 ... and that of all leaves whose expected children are worth more than the draft pass."""
    widths = [1 << power for power in range(len(leaves).bit_length()) if 1 << power < len(leaves)]
    widths.append(len(leaves))
    return [width for width in widths if child_sum * sum(leaves[:width]) > rate * level(width)]


def _child_chances(leaves: Sequence[float], children: Sequence[float], min_chance: float) -> list[float]:
    """The probabilities that children of these nodes are accepted, without those below `min_chance`."""
    return [chance for leaf in leaves for child in children if (chance := leaf * child) >= min_chance]


def best_shape(
    places: Callable[[int], Sequence[float]],
    depth: int,
    costs: Sequence[float],
    level: Callable[[int], float],
    rate: float,
) -> tuple[int, float]:
    """The levels of the most valuable tree of a fixed shape and its nodes' least chance, for trees that are drawn.

    The first level always has a node, since its draft pass was found to pay before the round. If no node fits, or the
    policy looks at none, the tree is its root alone: 1 level and a chance of 1.

    Args:
        places: by level, the rates at which the first, second ... drawn child of an accepted node is accepted.
        depth: the largest number of levels.
        costs: as for `best_count`; the tree has fewer nodes than there are costs.
        level: the cost of a draft pass by its width.
        rate: tokens per unit of cost.
    """
    nodes = [1.0]
    chances = list[float]()
    draft_cost = 0.0
    shape = (1, 1.0)
    best_value = float("-inf")
    for number in range(1, depth + 1):
        rates = places(number)
        nodes = sorted((chance * hit_rate for chance in nodes for hit_rate in rates), reverse=True)[: len(costs) - 1]
        chances = sorted([*chances, *nodes], reverse=True)
        count, value = best_count(chances, costs, rate)
        if value - draft_cost <= best_value or not chances:
            break
        floor = chances[max(count, 1) - 1]
        shape, best_value = (number, floor), value - draft_cost
        if not (nodes := [chance for chance in nodes if chance >= floor]):
            break
        draft_cost += rate * level(len(nodes))
    return shape
