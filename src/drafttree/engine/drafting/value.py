"""The controller's law as pure functions: expected tokens minus the time they take at the current rate.

    rate = (texts + sum of chances of drafted nodes) / (target pass over rows + nodes, draft passes, the rest)

At the largest rate, the choice that maximises tokens - rate * cost also maximises the ratio (Dinkelbach 1967). So a
node pays if its chance exceeds the rate times the cost of its row. A level pays if its best nodes pay for its draft
pass.
All costs have one unit, which is seconds if they were measured; rates are tokens per unit.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise


def best_count(chances: Sequence[float], costs: Sequence[float], rate: float) -> tuple[int, float]:
    """The number of drafted nodes to verify that has the largest value, and that value in tokens.

    Args:
        chances: per node, the probability that it is accepted, in falling order.
        costs: costs of target passes with 0, 1, 2 ... drafted nodes.
        rate: tokens per unit of cost.
    """
    best_nodes = 0
    best_value = -rate * costs[0]
    tokens = 0.0
    for nodes, (chance, cost) in enumerate(zip(chances, costs[1:], strict=False), start=1):
        tokens += chance
        value = tokens - rate * cost
        if value > best_value:
            best_nodes = nodes
            best_value = value
    return best_nodes, best_value


def best_width(
    leaves: Sequence[float],
    chances: Sequence[float],
    children: Sequence[float],
    costs: Sequence[float],
    level: Callable[[int], float],
    rate: float,
) -> int:
    """The number of newest nodes to expand that has the largest value; 0 if another level does not pay.

    Widths 1, 2, 4 ... and all nodes are tried until the value falls.

    Args:
        leaves: probabilities that the newest nodes are accepted, in falling order.
        chances: the same for all drafted nodes, the newest included, in any order.
        children: by rank, the expected number of accepted children of an accepted node.
        costs: as for `best_count`.
        level: the cost of a draft pass by its width.
        rate: tokens per unit of cost.
    """
    widths = _paying_widths(leaves, sum(children), level, rate)
    if not widths:  # most trees end here: the level would not pay even if rows were free
        return 0
    min_chance = rate * _least_row_cost(costs)
    likely_nodes = [chance for chance in chances if chance >= min_chance]
    chosen_width = 0
    _, best_value = best_count(sorted(likely_nodes, reverse=True), costs, rate)
    for width in widths:
        likely_children = _child_chances(leaves[:width], children, min_chance)
        _, tree_value = best_count(sorted(likely_nodes + likely_children, reverse=True), costs, rate)
        value = tree_value - rate * level(width)
        if value > best_value:
            chosen_width = width
            best_value = value
        elif chosen_width:
            break
    return chosen_width


def _paying_widths(leaves: Sequence[float], child_sum: float, level: Callable[[int], float], rate: float) -> list[int]:
    """Of the widths 1, 2, 4 ... and all leaves, those whose expected children are worth more than the draft pass."""
    widths = list[int]()
    width = 1
    while width < len(leaves):
        widths.append(width)
        width *= 2
    widths.append(len(leaves))
    return [width for width in widths if child_sum * sum(leaves[:width]) > rate * level(width)]


def _least_row_cost(costs: Sequence[float]) -> float:
    """The least cost that one more node adds to a pass; 0 if there is room for none."""
    return min((cost - previous_cost for previous_cost, cost in pairwise(costs)), default=0.0)


def _child_chances(parents: Sequence[float], rates: Sequence[float], min_chance: float = 0.0) -> list[float]:
    """The probabilities that children are accepted, without those below `min_chance`.

    Args:
        parents: the probabilities that their parents are accepted.
        rates: by rank or place, the rate at which a child of an accepted node is accepted.
        min_chance: the least probability of interest.
    """
    chances = list[float]()
    for parent in parents:
        chances += [chance for rate in rates if (chance := parent * rate) >= min_chance]
    return chances


def best_shape(
    child_rates: Callable[[int], Sequence[float]],
    depth: int,
    costs: Sequence[float],
    level: Callable[[int], float],
    rate: float,
) -> tuple[int, float]:
    """For drawn trees, the most valuable shape: its number of levels, and the least chance of its nodes.

    The first level always has a node, since drafting was found to pay before the round. If no node fits, or the policy
    has no candidates, the tree is the root alone: 1 level and a chance of 1.

    Args:
        child_rates: by level, the rates at which the first, second ... drawn child of an accepted node is accepted.
        depth: the largest number of levels.
        costs: as for `best_count`; the tree has fewer nodes than there are costs.
        level: the cost of a draft pass by its width.
        rate: tokens per unit of cost.
    """
    max_nodes = len(costs) - 1
    levels = 1
    min_chance = 1.0
    best_value = float("-inf")
    chances = list[float]()  # of all nodes
    parents = [1.0]  # chances of the expanded nodes
    draft_cost = 0.0  # of the passes after the first, in tokens
    for depth_reached in range(1, depth + 1):
        children = sorted(_child_chances(parents, child_rates(depth_reached)), reverse=True)[:max_nodes]
        chances = sorted([*chances, *children], reverse=True)
        if not chances:
            break
        count, tree_value = best_count(chances, costs, rate)
        value = tree_value - draft_cost
        if value <= best_value:
            break
        levels = depth_reached
        min_chance = chances[max(count, 1) - 1]
        best_value = value
        parents = [chance for chance in children if chance >= min_chance]
        if not parents:
            break
        draft_cost += rate * level(len(parents))
    return levels, min_chance
