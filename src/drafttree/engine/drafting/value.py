"""The law of the controller as pure functions: expected tokens minus the time they take at the going rate.

    rate = (texts + sum of chances of drafted nodes) / (target pass over rows + nodes, draft passes, the rest)

The ratio is largest where tokens - rate * cost is, the rate being that largest ratio (Dinkelbach 1967). So a node pays
if its chance exceeds the rate times what its row adds, and a level if its best nodes pay its draft pass. Costs are in
one unit, seconds where they were measured; rates are tokens per unit.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise


def best_count(chances: Sequence[float], costs: Sequence[float], rate: float) -> tuple[int, float]:
    """How many drafted nodes to verify, and their value in tokens.

    Args:
        chances: that nodes are accepted, in falling order.
        costs: of target passes with 0, 1, 2 ... of them.
        rate: tokens by cost.
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
    """How many of the newest nodes to expand, 0 where another level does not pay; widths are tried doubling.

    Args:
        leaves: chances of the newest nodes, in falling order.
        chances: those of all drafted nodes, these included.
        children: accepted children to expect of an accepted node, by rank.
        costs: as for `best_count`.
        level: cost of a draft pass by its width.
        rate: tokens by cost.
    """
    child_sum = sum(children)
    widths = [1 << power for power in range(len(leaves).bit_length()) if 1 << power < len(leaves)] + [len(leaves)]
    widths = [width for width in widths if child_sum * sum(leaves[:width]) > rate * level(width)]
    if not widths:  # most levels end here: not even free rows would pay them
        return 0
    min_chance = rate * min((cost - previous_cost for previous_cost, cost in pairwise(costs)), default=0.0)
    node_chances = sorted((chance for chance in chances if chance >= min_chance), reverse=True)
    chosen_width, best_value = 0, best_count(node_chances, costs, rate)[1]
    for width in widths:
        child_chances = [
            chance for leaf in leaves[:width] for child in children if (chance := leaf * child) >= min_chance
        ]
        value = best_count(sorted([*node_chances, *child_chances], reverse=True), costs, rate)[1] - rate * level(width)
        if value > best_value:
            chosen_width, best_value = width, value
        elif chosen_width:
            break
    return chosen_width


def best_shape(
    places: Callable[[int], Sequence[float]],
    depth: int,
    costs: Sequence[float],
    level: Callable[[int], float],
    rate: float,
) -> tuple[int, float]:
    """The levels of the most valuable tree of a fixed shape and its nodes' least chance, for trees that are drawn.

    Its first level is always drafted, with one node at least: its draft pass was found to pay before the round. Where
    there is room for no node, or the policy looks at none, it is the root.

    Args:
        places: by level, the rates at which the first, second ... drawn child is accepted.
        depth: levels at most.
        costs: as for `best_count`; there are fewer nodes than costs.
        level: cost of a draft pass by its width.
        rate: tokens by cost.
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
