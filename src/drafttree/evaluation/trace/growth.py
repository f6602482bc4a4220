"""The nodes of a tree as it grew, and the candidates that were cut, each with the rule that growth has told."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, GrowthObserver, Layer, Proposal, Rule, Verdict
from drafttree.engine.tree_growth import MIN_LOGPROB

MOST_CUT = 24
"""Candidates that were cut of which a round keeps the most probable; the others are only counted."""


@dataclass(eq=False)
class Node:
    """A node of a tree, or a candidate that was cut.

    Attributes:
        token: the token id.
        parent: its parent's place among the nodes, -1 for the root.
        depth: its distance from the root.
        rank: its place among its siblings, by the drafter's probability or in order of drawing; -1 for the root.
        draft: its probability given its parent by the drafter, None for the root.
        seen: this probability as the policy saw it.
        path: log-probability of its path as the policy saw it.
        rule: what cut it, or ended the path there.
    """

    token: int
    parent: int = -1
    depth: int = 0
    rank: int = -1
    draft: float | None = None
    seen: float | None = None
    path: float = 0.0
    rule: Rule = Rule.NONE


class Grown(NamedTuple):
    """A tree as it grew.

    Attributes:
        nodes: the nodes that joined it, the root first, then candidates that did not.
        places: where the nodes of the verified tree are among them.
        cut: where those are that are shown though they are not in the verified tree.
        bonus: the bonus token, with the rule that kept it out of the tree.
        counts: how many candidates each rule has cut.
    """

    nodes: list[Node]
    places: Sequence[int]
    cut: list[int]
    bonus: Node
    counts: Counter[Rule]

    @classmethod
    def of_tree(cls, grown: DraftTree, tree: DraftTree, verdict: Verdict) -> "Grown":
        """What a tree says by itself that was cut to a budget before it was verified."""
        nodes = _nodes(grown)
        places = _places(tree, nodes)
        cut = sorted({*range(len(nodes))}.difference(places))
        for place in cut:
            nodes[place].rule = Rule.BUDGET
        last = places[verdict.path[-1]]
        twin = grown.child(last, verdict.bonus)
        bonus = Node(verdict.bonus, last, nodes[last].depth + 1) if twin is None else nodes[twin]
        return cls(nodes, places, cut, bonus, +Counter({Rule.BUDGET: len(cut)}))


def _nodes(tree: DraftTree) -> list[Node]:
    """The nodes of a tree; their probabilities are those that its policy saw."""
    nodes = [Node(tree.tokens[0])]
    for place, logprob in enumerate(tree.node_logprobs[1:], start=1):
        parent, chance = tree.parents[place], math.exp(logprob)
        rank = tree.children[parent].index(place)
        nodes.append(Node(tree.tokens[place], parent, tree.depths[place], rank, chance, chance))
    return nodes


def _places(tree: DraftTree, nodes: Sequence[Node]) -> Sequence[int]:
    """Where the nodes of a tree are among those it was cut from; siblings of a tree that may be cut differ."""
    if tree.size == len(nodes):
        return range(tree.size)
    known, places = {(node.parent, node.token): place for place, node in enumerate(nodes)}, [0]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        places.append(known[places[parent], token])
    return places


class _Level(NamedTuple):
    """A level with the drafter's probabilities `[frontier, vocab]` and the log-probabilities that the policy saw."""

    frontier: Sequence[int]
    layer: Layer
    keep: Array
    tokens: Array
    joined: Array
    draft: Tensor
    seen: Tensor

    def node(self, nodes: Sequence[Node], row: int, rank: int, rule: Rule = Rule.NONE) -> Node:
        """The node of a candidate."""
        token, above = int(self.tokens[row, rank]), nodes[self.frontier[row]]
        draft, seen = float(self.draft[row, token]), float(self.seen[row, token])
        return Node(token, self.frontier[row], above.depth + 1, rank, draft, math.exp(seen), above.path + seen, rule)

    def best(self, mask: Array) -> list[tuple[int, int]]:
        """Row and rank of the most probable candidates of a mask."""
        paths = np.where(mask, -self.layer.path_logprobs, math.inf)
        order = paths.argsort(axis=None, kind="stable")[: min(MOST_CUT, int(mask.sum()))]
        return [divmod(place, mask.shape[1]) for place in order.tolist()]


class GrowthRecord(GrowthObserver):
    """Keeps what the growth of a tree tells, to be read after the round, outside its clock."""

    def __init__(self) -> None:
        self._guided = list[tuple[Tensor, Tensor]]()
        self._kept = list[tuple[Sequence[int], Layer, Array]]()
        self._joined = list[tuple[Array, Array]]()
        self._ended = dict[int, Rule]()

    def guided(self, logits: Tensor, seen: Tensor) -> None:
        self._guided.append((logits.clone(), seen.clone()))

    def kept(self, frontier: Sequence[int], layer: Layer, keep: Array) -> None:
        self._kept.append((frontier, layer, keep))

    def joined(self, tokens: Array, mask: Array) -> None:
        self._joined.append((tokens, mask))

    def ended(self, nodes: Sequence[int], rule: Rule) -> None:
        self._ended |= dict.fromkeys(nodes, rule)

    def read(self, tree: DraftTree, verdict: Verdict, sampling: Sampling, vocab: int, *, reranks: bool) -> Grown:
        """The tree as it grew.

        Args:
            tree: the tree that was verified.
            verdict: the verdict on it.
            sampling: the sampling of the text.
            vocab: the vocab of the target.
            reranks: whether the policy drops nodes in the end.
        """
        drawn, counts, rows = tree.proposal is not Proposal.TOP_K, Counter[Rule](), dict[int, tuple[_Level, int]]()
        nodes, cut = [Node(tree.tokens[0])], list[Node]()
        for (logits, guided), kept, joined in zip(self._guided, self._kept, self._joined, strict=False):
            draft = sampling.process(logits).softmax(-1)[..., :vocab].cpu()
            level = _Level(*kept, *joined, draft, guided.log_softmax(-1)[..., :vocab].cpu())
            rows |= {node: (level, row) for row, node in enumerate(level.frontier)}
            nodes += [level.node(nodes, row, rank) for row, rank in np.argwhere(level.joined).tolist()]
            if drawn:  # candidates are places, not tokens
                likely = level.keep & (level.layer.logprobs >= MIN_LOGPROB)
                counts[Rule.BUDGET] += int(likely.sum()) - int(level.joined.sum())
                continue
            out = {Rule.KEEP: level.layer.possible & ~level.keep, Rule.BUDGET: level.keep & ~level.joined}
            for rule, mask in out.items():
                counts[rule] += int(mask.sum())
                cut += [level.node(nodes, row, rank, rule) for row, rank in level.best(mask)]
        nodes = nodes if rows else _nodes(tree)  # the second of a tree that no drafter was asked for
        places, drops = _places(tree, nodes), Rule.RERANK if reranks and not drawn else Rule.BUDGET
        dropped = [node for place, node in enumerate(nodes) if place not in {*places}]
        counts[drops] += len(dropped)
        for node in dropped:
            node.rule = drops
        for place, children in zip(places, tree.children, strict=True):
            if not children:
                level, row = rows.get(place, (None, 0))
                expanded = Rule.DEPTH if level is None else drops if level.keep[row].any() else Rule.KEEP
                nodes[place].rule = self._ended.get(place, expanded)
        last, token = places[verdict.path[-1]], verdict.bonus
        bonus = Node(token, last, nodes[last].depth + 1, rule=nodes[last].rule)
        if last in rows:
            level, row = rows[last]
            bonus.rank = int((level.seen[row] > level.seen[row, token]).sum())
            bonus.draft, bonus.seen = float(level.draft[row, token]), float(level.seen[row, token].exp())
            twin = next((node for node in nodes if (node.parent, node.token) == (last, token)), None)
            if twin:
                bonus.rule = drops if twin in dropped else Rule.NONE
            elif drawn or token not in level.tokens[row]:
                bonus.rule = Rule.DRAW if drawn else Rule.WIDTH
            else:
                bonus.rule = Rule.BUDGET if (level.keep & (level.tokens == token))[row].any() else Rule.KEEP
        shown = sorted([*cut, *dropped], key=lambda node: (-node.path, node.depth))[:MOST_CUT]
        nodes += cut
        return Grown(nodes, places, [nodes.index(node) for node in shown], bonus, +counts)
