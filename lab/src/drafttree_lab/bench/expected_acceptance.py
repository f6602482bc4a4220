"""Tokens that a verifier is expected to accept of one tree, without a draw."""

from drafttree.verifiers.base import TreeView, ratio, residual, without
from drafttree.verifiers.traversal import traverse


def reach_by_rejection(view: TreeView) -> list[float]:
    """Per node, the probability that `RRSw` accepts it, given the tree."""
    reach = [1.0] + [0.0] * (len(view.tokens) - 1)
    for node, children in enumerate(view.children):
        if not children or not reach[node]:
            continue
        p, q, left = view.target(node), view.draft(node), reach[node]
        for child in children:
            token = view.tokens[child]
            reach[child] = left * min(float(ratio(p, q, token)), 1.0)
            left -= reach[child]
            p, q = residual(p, q), without(q, token)
    return reach


def reach_by_walking(view: TreeView) -> list[float]:
    """Per node, the probability that `PointMass` accepts it, given a tree whose siblings differ."""
    reach = [1.0] + [0.0] * (len(view.tokens) - 1)
    for node, children in enumerate(view.children):
        if children:
            row = view.target(node)[[view.tokens[child] for child in children]].tolist()
            for child, probability in zip(children, row, strict=True):
                reach[child] = reach[node] * probability
    return reach


def expected_by_traversal(view: TreeView) -> float:
    """The expected number of tokens that `Traversal` accepts, given the tree.

    It stops at the first leaf it accepts, so the traversal in which it rejects all of them passes every outcome.
    """
    judgements = traverse(view)
    left, expected = 1.0, 0.0
    for (path, _), rate in zip(judgements[:-1], view.read([leaf.rate for _, leaf in judgements[:-1]]), strict=True):
        expected += left * rate * (len(path) - 1)
        left *= 1 - rate
    return expected
