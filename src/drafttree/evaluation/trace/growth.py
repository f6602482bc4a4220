"""The nodes of a tree as it grew, and the candidates that were cut, each with the rule that growth has told."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, GrowthObserver, Layer, Proposal, Rule, Verdict
from drafttree.evaluation.trace.trace import TracedNode

MOST_CUT = 24
"""Candidates that were cut of which a round keeps the most probable; the others are only counted."""


class Grown(NamedTuple):
    """A tree as it grew. Parents are places among `nodes`; texts, outcomes and what the target says are missing.

    Attributes:
        nodes: the nodes that joined it, the root first, then candidates that did not.
        places: where the nodes of the verified tree are among them.
        cut: where those are that are shown though they are not in the verified tree.
        bonus: the bonus token, with the rule that kept it out of the tree.
        counts: how many candidates each rule has cut.
    """

    nodes: list[TracedNode]
    places: Sequence[int]
    cut: list[int]
    bonus: TracedNode
    counts: Counter[Rule]

    @classmethod
    def of_tree(cls, grown: DraftTree, tree: DraftTree, verdict: Verdict) -> "Grown":
        """What a tree says by itself that was cut to a budget before it was verified."""
        nodes = _nodes(grown)
        tree_indices = _places(tree, nodes)
        cut = sorted({*range(len(nodes))}.difference(tree_indices))
        for index in cut:
            nodes[index].rule = Rule.BUDGET
        last_node = tree_indices[verdict.path[-1]]
        twin = grown.child(last_node, verdict.bonus)
        leaf = TracedNode(verdict.bonus, parent=last_node, depth=nodes[last_node].depth + 1)
        bonus = leaf if twin is None else replace(nodes[twin])
        return cls(nodes, tree_indices, cut, bonus, +Counter({Rule.BUDGET: len(cut)}))


def _nodes(tree: DraftTree) -> list[TracedNode]:
    """The nodes of a tree; their probabilities are those that its policy saw."""
    nodes = [TracedNode(tree.tokens[0])]
    for index, logprob in enumerate(tree.node_logprobs[1:], start=1):
        parent = tree.parents[index]
        chance = math.exp(logprob)
        rank = tree.children[parent].index(index)
        nodes.append(TracedNode(tree.tokens[index], "", parent, tree.depths[index], rank, chance, chance))
    return nodes


def _places(tree: DraftTree, nodes: Sequence[TracedNode]) -> Sequence[int]:
    """Where the nodes of a tree are among those it was cut from; siblings of a tree that may be cut differ."""
    if tree.size == len(nodes):
        return range(tree.size)
    child_index = {(node.parent, node.token): index for index, node in enumerate(nodes)}
    indices = [0]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        indices.append(child_index[indices[parent], token])
    return indices


class _Level(NamedTuple):
    """A level with the drafter's probabilities `[frontier, vocab]` and the log-probabilities that the policy saw."""

    frontier: Sequence[int]
    layer: Layer
    keep: Array
    tokens: Array
    joined: Array
    draft: Tensor
    seen: Tensor

    def node(self, row: int, rank: int, rule: Rule = Rule.NONE) -> TracedNode:
        """The node of a candidate."""
        token = int(self.tokens[row, rank])
        chances = float(self.draft[row, token]), math.exp(self.seen[row, token])
        return TracedNode(token, "", self.frontier[row], self.layer.depth, rank, *chances, rule=rule)

    def best(self, mask: Array) -> list[tuple[int, int]]:
        """Row and rank of the most probable candidates of a mask."""
        paths = np.where(mask, -self.layer.path_logprobs, math.inf)
        order = paths.argsort(axis=None, kind="stable")[: min(MOST_CUT, int(mask.sum()))]
        return [divmod(flat_index, mask.shape[1]) for flat_index in order.tolist()]


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
        is_sampled = tree.proposal is not Proposal.TOP_K
        counts = Counter[Rule]()
        rows = dict[int, tuple[_Level, int]]()
        nodes = [TracedNode(tree.tokens[0])]
        cut_nodes = list[TracedNode]()
        for (logits, guided_logits), kept_layer, joined_nodes in zip(
            self._guided, self._kept, self._joined, strict=False
        ):
            draft = sampling.process(logits).softmax(-1)[..., :vocab].cpu()
            level = _Level(*kept_layer, *joined_nodes, draft, guided_logits.log_softmax(-1)[..., :vocab].cpu())
            rows |= {node: (level, row) for row, node in enumerate(level.frontier)}
            nodes += [level.node(row, rank) for row, rank in np.argwhere(level.joined).tolist()]
            if is_sampled:  # candidates are places, not tokens
                counts[Rule.BUDGET] += int(level.keep.sum()) - int(level.joined.sum())
                continue
            masks = {Rule.KEEP: level.layer.possible & ~level.keep, Rule.BUDGET: level.keep & ~level.joined}
            for rule, mask in masks.items():
                counts[rule] += int(mask.sum())
                cut_nodes += [level.node(row, rank, rule) for row, rank in level.best(mask)]
        nodes = nodes if rows else _nodes(tree)  # the second of a tree that no drafter was asked for
        tree_indices = _places(tree, nodes)
        drop_rule = Rule.RERANK if reranks and not is_sampled else Rule.BUDGET
        dropped_indices = sorted({*range(len(nodes))}.difference(tree_indices))
        counts[drop_rule] += len(dropped_indices)
        for index in dropped_indices:
            nodes[index].rule = drop_rule
        for index, children in zip(tree_indices, tree.children, strict=True):
            if not children:
                rule = self._ended.get(index, Rule.DEPTH)
                if index in rows:
                    level, row = rows[index]
                    rule = self._ended.get(index, drop_rule if level.keep[row].any() else Rule.KEEP)
                nodes[index].rule = rule
        last_node = tree_indices[verdict.path[-1]]
        token = verdict.bonus
        bonus = TracedNode(token, parent=last_node, depth=nodes[last_node].depth + 1, rule=nodes[last_node].rule)
        if last_node in rows:
            level, row = rows[last_node]
            bonus.rank = int((level.seen[row] > level.seen[row, token]).sum())
            bonus.draft = float(level.draft[row, token])
            bonus.seen = float(level.seen[row, token].exp())
            twins = [index for index, node in enumerate(nodes) if (node.parent, node.token) == (last_node, token)]
            if twins:
                bonus.rule = drop_rule if twins[0] in dropped_indices else Rule.NONE
            elif is_sampled or token not in level.tokens[row]:
                bonus.rule = Rule.DRAW if is_sampled else Rule.WIDTH
            else:
                bonus.rule = Rule.BUDGET if (level.keep & (level.tokens == token))[row].any() else Rule.KEEP
        cut_indices = [*range(len(nodes), len(nodes) + len(cut_nodes)), *dropped_indices]
        nodes += cut_nodes
        paths = [0.0]
        for node in nodes[1:] if rows else []:
            level, row = rows[node.parent]
            paths.append(paths[node.parent] + float(level.seen[row, node.token]))
        cut_indices.sort(key=lambda place: (-paths[place], nodes[place].depth))
        return Grown(nodes, tree_indices, cut_indices[:MOST_CUT], bonus, +counts)
