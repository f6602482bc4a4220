"""One budget for the trees of all requests of a batch, as pure functions.

A drafted node is worth its row in the target pass if the probability that it is accepted is higher than what the row
costs, at the tokens per second that the batch reaches. That does not depend on whose node it is, so the nodes of all
requests are sorted together. The probability never rises down a path: whatever is cut, what remains are trees.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from drafttree.core.errors import ConfigError
from drafttree.core.tree import DraftTree, Proposal
from drafttree.policies.calibration import SurvivalCalibration


def best_count(
    chances: Iterable[float], rows: int, tokens: float, target: Callable[[int], float], spent: float = 0.0
) -> int:
    """The number of drafted nodes that maximises tokens per time: (tokens + sum of p) / (T(rows + k) + spent).

    Args:
        chances: the probabilities that nodes are accepted, in falling order.
        rows: rows of the target pass without drafted nodes: roots and parts of prompts.
        tokens: committed without drafted nodes: one for each request.
        target: the cost of a pass by its rows.
        spent: what else the round costs, drafting included.

    Returns:
        k; 0 where plain decoding is best.
    """
    found, best = 0, tokens / (target(rows) + spent)
    for count, chance in enumerate(chances, start=1):
        tokens += chance
        rate = tokens / (target(rows + count) + spent)
        if rate > best:
            found, best = count, rate
    return found


def survival(tree: DraftTree, calibration: SurvivalCalibration) -> list[float]:
    """Per node of one tree, the log-probability that it is accepted: 0 for the root, and never above its parent's."""
    children, paths = tree.children, tree.path_logprobs
    found, depths = [0.0] * tree.size, [0] * tree.size
    for node, below in enumerate(children):
        own = [paths[child] - paths[node] for child in below]
        chances = calibration.log_acceptance(own, depths[node] + 1, found[node]) if below else []
        for child, chance in zip(below, chances, strict=True):
            found[child], depths[child] = chance, depths[node] + 1
    return found


def falling(chances: Sequence[Sequence[float]]) -> list[float]:
    """The probabilities of the drafted nodes of all trees, in falling order, from their `survival`."""
    return sorted((math.exp(chance) for tree in chances for chance in tree[1:]), reverse=True)


def cut(trees: Sequence[DraftTree], chances: Sequence[Sequence[float]], count: int) -> list[DraftTree]:
    """The trees with the `count` drafted nodes of all of them that are likeliest to be accepted.

    Args:
        trees: trees of the batch.
        chances: chances of each tree, its `survival`.
        count: drafted nodes that remain, roots not included.

    Raises:
        ConfigError: children of a tree were drawn at random. A drawn node must stay in its tree: dropping it for what
            it is changes the distribution that the verifier relies on.
    """
    if any(tree.proposal is not Proposal.TOP_K for tree in trees):
        raise ConfigError("trees whose children are drawn cannot be cut; limit their levels before they are drawn")
    nodes = [(-chance, place, node) for place, tree in enumerate(chances) for node, chance in enumerate(tree) if node]
    kept = [1] * len(trees)
    for _, place, _ in sorted(nodes)[:count]:
        kept[place] += 1
    return [tree.best(size, [math.inf, *own[1:]]) for tree, own, size in zip(trees, chances, kept, strict=True)]
