"""The nodes of a tree as it grew and the candidates that were cut, each with the rule that ended or cut it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, GrowthObserver, Layer, Proposal, Rule, Verdict
from drafttree.evaluation.trace.trace import TracedNode

MOST_CUT = 24
"""Maximum number of cut candidates that a round shows, the most probable first; others are only counted."""


class Grown(NamedTuple):
    """A tree as it grew. Parents are indices in `nodes`; texts, outcomes and target probabilities are not set yet.

    Attributes:
        nodes: the nodes that joined the tree, the root first, then candidates that did not.
        places: per node of the verified tree, its index in `nodes`.
        cut: indices in `nodes` of the cut candidates and nodes to show.
        bonus: the bonus token, with the rule that kept it out of the tree.
        counts: by rule, the number of candidates and nodes that it cut.
    """

    nodes: list[TracedNode]
    places: Sequence[int]
    cut: list[int]
    bonus: TracedNode
    counts: Counter[Rule]

    @classmethod
    def of_tree(cls, grown: DraftTree, tree: DraftTree, verdict: Verdict) -> "Grown":
        """The growth that follows from two trees alone.

        Args:
            grown: the tree as the policy left it.
            tree: the verified tree, which is `grown` cut to a budget.
            verdict: the verdict on `tree`.
        """
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
    """The nodes of a tree, whose probabilities are those that the policy saw."""
    nodes = [TracedNode(tree.tokens[0])]
    for index, logprob in enumerate(tree.node_logprobs[1:], start=1):
        parent = tree.parents[index]
        chance = math.exp(logprob)
        rank = tree.children[parent].index(index)
        nodes.append(TracedNode(tree.tokens[index], "", parent, tree.depths[index], rank, chance, chance))
    return nodes


def _places(tree: DraftTree, nodes: Sequence[TracedNode]) -> Sequence[int]:
    """Per node of a tree, its index in the `nodes` that it was cut from; siblings of a cut tree differ in token."""
    if tree.size == len(nodes):
        return range(tree.size)
    child_index = {(node.parent, node.token): index for index, node in enumerate(nodes)}
    indices = [0]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        indices.append(child_index[indices[parent], token])
    return indices


class _Level(NamedTuple):
    """The record of a level's growth.

    Attributes:
        frontier: the nodes that were expanded.
        layer: their candidates, as the policy saw them.
        keep: bool `[frontier, candidates]`, what the policy kept.
        tokens: `[frontier, candidates]` token ids of the candidates or of the drawn children.
        joined: bool of the same shape, which of them joined the tree.
        draft: `[frontier, vocab]` probabilities of the drafter.
        seen: `[frontier, vocab]` log-probabilities that the policy saw.
    """

    frontier: Sequence[int]
    layer: Layer
    keep: Array
    tokens: Array
    joined: Array
    draft: Tensor
    seen: Tensor

    def node(self, row: int, rank: int, rule: Rule = Rule.NONE) -> TracedNode:
        """The candidate of a row and rank as a node."""
        token = int(self.tokens[row, rank])
        chances = float(self.draft[row, token]), math.exp(self.seen[row, token])
        return TracedNode(token, "", self.frontier[row], self.layer.depth, rank, *chances, rule=rule)

    def best(self, mask: Array) -> list[tuple[int, int]]:
        """Row and rank of the candidates in a mask with the most probable paths, `MOST_CUT` at most."""
        paths = np.where(mask, -self.layer.path_logprobs, math.inf)
        order = paths.argsort(axis=None, kind="stable")[: min(MOST_CUT, int(mask.sum()))]
        return [divmod(flat_index, mask.shape[1]) for flat_index in order.tolist()]


class _LevelRow(NamedTuple):
    """The row of a level that holds the children of one frontier node."""

    level: _Level
    row: int

    @property
    def keeps_any(self) -> bool:
        """Whether the policy kept any candidate."""
        return bool(self.level.keep[self.row].any())

    def offers(self, token: int) -> bool:
        """Whether the token is among the candidates or, in a tree that is drawn, the drawn children."""
        return token in self.level.tokens[self.row]

    def keeps(self, token: int) -> bool:
        """Whether the policy kept the token."""
        return bool((self.level.keep & (self.level.tokens == token))[self.row].any())

    def seen_logprob(self, token: int) -> float:
        """The log-probability of the token that the policy saw."""
        return float(self.level.seen[self.row, token])

    def fill(self, node: TracedNode) -> None:
        """Set the rank and the probabilities of a node by its token, which need not be a candidate."""
        seen_logprobs = self.level.seen[self.row]
        node.rank = int((seen_logprobs > seen_logprobs[node.token]).sum())
        node.draft = float(self.level.draft[self.row, node.token])
        node.seen = float(seen_logprobs[node.token].exp())


class GrowthRecord(GrowthObserver):
    """Records how the tree of a round grows. It is read after the round, so that its time does not count."""

    def __init__(self) -> None:
        self.begin_round()

    def begin_round(self) -> None:
        """Delete the record of the last round."""
        self._guided = list[tuple[Tensor, Tensor]]()
        self._kept = list[tuple[Sequence[int], Layer, Array]]()
        self._joined = list[tuple[Array, Array]]()
        self._ended = dict[int, Rule]()

    def guided(self, logits: Tensor, guided_logits: Tensor) -> None:
        self._guided.append((logits.clone(), guided_logits.clone()))

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
            vocab: the target's number of tokens.
            reranks: whether the policy drops nodes of the full-grown tree.
        """
        growth = _Growth(tree, self._levels(sampling, vocab), self._ended, reranks=reranks)
        nodes = growth.nodes + growth.cut_candidates
        return Grown(nodes, growth.places, growth.shown_cut(nodes), growth.bonus(verdict), +growth.counts)

    def _levels(self, sampling: Sampling, vocab: int) -> list[_Level]:
        levels = []
        records = zip(self._guided, self._kept, self._joined, strict=False)
        for (logits, guided_logits), kept_layer, joined_nodes in records:
            draft = sampling.process(logits).softmax(-1)[..., :vocab].cpu()
            seen_logprobs = guided_logits.log_softmax(-1)[..., :vocab].cpu()
            levels.append(_Level(*kept_layer, *joined_nodes, draft, seen_logprobs))
        return levels


class _Growth:
    """Works out, from the record of a tree's growth, what became of nodes and candidates.

    Args:
        tree: the tree that was verified.
        levels: the levels that grew.
        end_rules: by node, the rule by which it was not expanded.
        reranks: whether the policy drops nodes of the full-grown tree.

    Attributes:
        nodes: the nodes that joined the tree, the root first.
        cut_candidates: the most probable candidates that did not join; their parents are indices in `nodes`.
        places: per node of the verified tree, its index in `nodes`.
        counts: by rule, the number of candidates and nodes that it cut.
    """

    def __init__(
        self, tree: DraftTree, levels: Sequence[_Level], end_rules: Mapping[int, Rule], *, reranks: bool
    ) -> None:
        self._tree = tree
        self._end_rules = end_rules
        self._is_sampled = tree.proposal is not Proposal.TOP_K
        self._drop_rule = Rule.RERANK if reranks and not self._is_sampled else Rule.BUDGET
        self._rows = dict[int, _LevelRow]()
        self.cut_candidates = list[TracedNode]()
        self.counts = Counter[Rule]()
        self.nodes = [TracedNode(tree.tokens[0])]
        for level in levels:
            self._read(level)
        if not self._rows:
            self.nodes = _nodes(tree)  # no drafter was asked for the tree
        self.places = _places(tree, self.nodes)
        self._dropped_indices = sorted({*range(len(self.nodes))}.difference(self.places))
        self.counts[self._drop_rule] += len(self._dropped_indices)
        self._mark_ends()

    def _read(self, level: _Level) -> None:
        """Add the nodes of a level, and collect the candidates that did not join."""
        for row, node in enumerate(level.frontier):
            self._rows[node] = _LevelRow(level, row)
        self.nodes += [level.node(row, rank) for row, rank in np.argwhere(level.joined).tolist()]
        if self._is_sampled:  # candidates are places for drawn children, not tokens
            self.counts[Rule.BUDGET] += int(level.keep.sum()) - int(level.joined.sum())
            return
        masks = {Rule.KEEP: level.layer.possible & ~level.keep, Rule.BUDGET: level.keep & ~level.joined}
        for rule, mask in masks.items():
            self.counts[rule] += int(mask.sum())
            self.cut_candidates += [level.node(row, rank, rule) for row, rank in level.best(mask)]

    def _mark_ends(self) -> None:
        """Set the rule of every dropped node, and of every leaf of the verified tree."""
        for index in self._dropped_indices:
            self.nodes[index].rule = self._drop_rule
        for index, children in zip(self.places, self._tree.children, strict=True):
            if not children:
                self.nodes[index].rule = self._leaf_rule(index)

    def _leaf_rule(self, index: int) -> Rule:
        if index in self._end_rules:
            return self._end_rules[index]
        if index not in self._rows:
            return Rule.DEPTH
        return self._drop_rule if self._rows[index].keeps_any else Rule.KEEP

    def bonus(self, verdict: Verdict) -> TracedNode:
        """The bonus token, with the rule that kept it out of the verified tree."""
        parent = self.places[verdict.path[-1]]
        parent_node = self.nodes[parent]
        bonus = TracedNode(verdict.bonus, parent=parent, depth=parent_node.depth + 1, rule=parent_node.rule)
        if parent in self._rows:
            self._rows[parent].fill(bonus)
            bonus.rule = self._bonus_rule(parent, verdict.bonus)
        return bonus

    def _bonus_rule(self, parent: int, token: int) -> Rule:
        """What kept a child of an expanded node out of the verified tree."""
        for index, node in enumerate(self.nodes):
            if (node.parent, node.token) == (parent, token):
                return self._drop_rule if index in self._dropped_indices else Rule.NONE
        if self._is_sampled:
            return Rule.DRAW
        level_row = self._rows[parent]
        if not level_row.offers(token):
            return Rule.WIDTH
        return Rule.BUDGET if level_row.keeps(token) else Rule.KEEP

    def shown_cut(self, nodes: Sequence[TracedNode]) -> list[int]:
        """The indices of the cut candidates and dropped nodes to show, the most probable paths first.

        Args:
            nodes: `nodes` and, after them, `cut_candidates`.
        """
        cut_indices = [*range(len(self.nodes), len(nodes)), *self._dropped_indices]
        path_logprobs = [0.0]
        for node in nodes[1:] if self._rows else []:
            path_logprobs.append(path_logprobs[node.parent] + self._rows[node.parent].seen_logprob(node.token))
        cut_indices.sort(key=lambda index: (-path_logprobs[index], nodes[index].depth))
        return cut_indices[:MOST_CUT]
