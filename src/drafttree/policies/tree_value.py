"""The value of a draft tree by the speed-up law: expected tokens minus the time they take at the going rate.

A round commits 1 + sum of p(u) tokens in expectation, p(u) being the probability that node u is accepted, and costs
v(n) + c * delta + h. The ratio of the two is largest for the trees that maximise tokens - rate * cost, where the rate
is that largest ratio itself (Dinkelbach 1967). So a node pays if its p(u) is more than the rate times what it adds to
the target pass, and a level if its best nodes add more than the rate times its draft pass.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

from drafttree.core.cost_curve import Costs
from drafttree.policies.calibration import place_rates


def best_size(chances: Sequence[float], costs: Sequence[float], rate: float) -> tuple[int, float]:
    """The number of nodes, root included, of the most valuable tree, and its value but for the root's own token.

    Args:
        chances: probabilities that the drafted nodes are accepted, in falling order.
        costs: costs of target passes over 0, 1, 2 ... nodes; no tree is larger.
        rate: tokens per unit of cost.
    """
    size, value, tokens = 1, -rate * costs[1], 0.0
    for nodes, (chance, cost) in enumerate(zip(chances, costs[2:], strict=False), start=2):
        tokens += chance
        if tokens - rate * cost > value:
            size, value = nodes, tokens - rate * cost
    return size, value


def best_width(
    leaves: Sequence[float],
    chances: Sequence[float],
    children: Sequence[float],
    costs: Sequence[float],
    draft: Costs,
    rate: float,
    least: float = 0.0,
) -> int:
    """How many of the newest nodes to expand, 0 if another level does not pay.

    Widths that could pay are tried, doubling, until one pays less than the best so far.

    Args:
        leaves: probabilities that the newest nodes are accepted, in falling order.
        chances: those of all drafted nodes, these included.
        children: accepted children to expect of an accepted node, by rank.
        costs: costs of target passes over 0, 1, 2 ... nodes; no tree is larger.
        draft: cost of a draft pass by its width.
        rate: tokens per unit of cost.
        least: probability below which no node is worth its share of any target pass.
    """
    each = sum(children)
    widths = [width for width in _widths(len(leaves)) if each * sum(leaves[:width]) > rate * draft.at(width)]
    if not widths:  # most rounds end here, so what follows is spared: not even free target nodes would pay
        return 0
    known = sorted((chance for chance in chances if chance >= least), reverse=True)
    _, best = best_size(known, costs, rate)
    found = 0
    for width in widths:
        expected = [chance for leaf in leaves[:width] for child in children if (chance := leaf * child) >= least]
        _, value = best_size(sorted([*known, *expected], reverse=True), costs, rate)
        value -= rate * draft.at(width)
        if value > best:
            found, best = width, value
        elif found:
            break
    return found


def _widths(most: int) -> list[int]:
    """1, 2, 4 ... and `most` itself."""
    return [width for width in (1 << power for power in range(most.bit_length())) if width < most] + [most] * (most > 0)


@lru_cache(maxsize=64)
def best_limits(
    places: tuple[tuple[float, ...], ...],
    children: int,
    depth: int,
    budget: int,
    target: Costs,
    draft: Costs,
    rate: float,
) -> tuple[int, float]:
    """The most valuable tree of a fixed shape: how many levels it has, and its nodes' least probability.

    Its first level is always drafted, with one node at least, since its draft pass has been made.

    Args:
        places: by level and class of place, how often the child in that place is accepted if its parent is.
        children: largest number of children of a node.
        depth: largest number of levels.
        budget: largest number of nodes, root included.
        target: costs of target passes.
        draft: costs of draft passes by their width.
        rate: tokens per unit of cost.
    """
    level, chances, spent = [1.0], list[float](), 0.0
    found, best = (1, 1.0), -math.inf
    for number in range(1, depth + 1):
        rates = place_rates(places, number, children)
        level = sorted((chance * each for chance in level for each in rates), reverse=True)[: budget - 1]
        chances = sorted([*chances, *level], reverse=True)
        size, value = best_size(chances, target.up_to(budget), rate)
        if value - spent <= best:
            break
        floor = chances[max(size - 2, 0)]
        found, best = (number, floor), value - spent
        level = [chance for chance in level if chance >= floor]
        if not level:
            break
        spent += rate * draft.at(len(level))
    return found
