"""Grows draft trees level by level, for any policy and for one text or many.

On each level, the drafter's logits for the frontiers are read from the device. The policy sees the best candidates of
each text and returns two masks: which candidates join the tree, and which of those are expanded. This module cuts to
the budget and gives the next frontiers to the drafter. So there are as many draft passes as the deepest tree has
levels, however wide the trees are.

With any policy, children can be drawn instead. Then the masks only decide how many children a node gets, before these
are drawn. Every drawn node stays in the tree; the budget limits the number of draws. So the verifier can rely on the
distribution that the children came from.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.candidates import Candidates
from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import is_out_of_memory
from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, GrowingTree, GrowthObserver, Layer, Proposal, Rule
from drafttree.core.vocab_ops import argmax, ranked
from drafttree.drafters.ranked_logits import DraftLogits, RankedLogits
from drafttree.drafters.session import Frontier
from drafttree.models.inference import in_inference_mode
from drafttree.models.native.kernels import native_candidates
from drafttree.policies.base import TreePolicy, best_mask

MIN_LOGPROB = -80.0
"""Tokens with a lower log-probability are not drawn, since float32 cannot represent their probability."""
HOOKS = {"keep": "bool", "expand": "bool", "score": "float", "label": "integer", "stop": "bool"}
"""The kind of value that each hook of a policy returns."""


class DraftRows(Protocol):
    """Drafts for the trees of a batch: returns the logits that the policy sees."""

    def draft_root(self) -> DraftLogits | Candidates:
        """Run the first draft pass of a round, and return logits `[batch, vocab]` of the token after each root.

        They are tensors where children are drawn. A drafter that proposes few tokens returns `Candidates`.
        """
        ...

    def draft_level(self, frontiers: Sequence[Frontier]) -> DraftLogits | Candidates:
        """Run a later draft pass, and return logits `[nodes, vocab]`, or `Candidates`, of the token after each node.

        Args:
            frontiers: the frontier of each tree; empty for a finished tree. The result has the nodes in this order.
        """
        ...

    def draft_chain(self, tokens: Sequence[int], count: int, allowed: int) -> tuple[Array, Array] | None:
        """Return chains that follow the trees' only nodes; see `drafttree.drafters.base.SharedDrafter`."""
        return None


class Limits(Protocol):
    """The controller's limits on growth. The controller also cuts the finished trees.

    Attributes:
        chances: per tree, the log-probabilities that its first nodes are accepted, as far as they are known; None if
            they are not.
    """

    chances: Any

    def choose_frontier(self, texts: Sequence[GrowingTree], depth: int) -> Sequence[Sequence[int]]:
        """Choose the nodes that are worth expanding: for each tree, some nodes of its frontier in ascending order.

        Args:
            texts: the trees so far; each `frontier` has the nodes that the policy expands.
            depth: the depth of these nodes.
        """
        ...

    def max_children(self, texts: Sequence[GrowingTree], depth: int) -> Sequence[Sequence[int]] | None:
        """Per tree and frontier node, the most children to draw; None for as many as the policy keeps.

        Args:
            texts: the trees so far.
            depth: the depth of the children.
        """
        ...


@in_inference_mode
def grow(
    policy: TreePolicy,
    draft: DraftRows,
    roots: Sequence[int],
    max_levels: Sequence[int],
    *,
    states: Sequence[Any],
    proposal: Proposal = Proposal.TOP_K,
    randomness: Sequence[Randomness] = (),
    vocab: int | None = None,
    limits: Limits | None = None,
    source: int = 0,
    ends: Callable[[Exception], bool] = lambda error: False,
    observers: Iterable[GrowthObserver | None] | None = None,
) -> list[DraftTree]:
    """Draft the trees of one round.

    If the drafter fails or memory runs out, `ends` decides whether the trees keep their levels so far and end. Drawn
    levels always stay, since dropping drawn nodes would not be lossless.

    Args:
        policy: decides which candidates join the trees and which are expanded.
        draft: returns the logits of each level that the policy sees.
        roots: the last committed token of each text.
        max_levels: per text, the largest depth of a node; at least 1 if there are several texts.
        states: the policy's state of each text.
        proposal: how children are chosen: the draft's best tokens, or draws.
        randomness: the randomness of each text in this round; needed only for draws.
        vocab: the target's vocabulary size. Further columns of logits count in the softmax but are never drafted. None
            if there are none.
        limits: restricts what is expanded and drawn. With limits, trees of a policy that re-ranks are not cut here.
        source: the index of the drafter's model that drafts.
        ends: called with an error of the drafter; True ends the trees, False raises the error.
        observers: per text, an observer of its tree's growth or None.

    Returns:
        The trees to verify, at most `policy.budget` nodes each, unless `limits` are given and the policy re-ranks.

    Raises:
        ConfigError: if a hook of the policy returns a value of the wrong kind or shape.
    """
    trees = [
        GrowingTree(root, limit, state, proposal, source, observer)
        for root, limit, state, observer in zip(
            roots, max_levels, states, observers or repeat(None, len(roots)), strict=True
        )
    ]
    growth = Growth(policy, trees, proposal, randomness, vocab, limits)
    growth.add_levels(draft, ends)
    return growth.trees()


class _Children(NamedTuple):
    """The candidates for children of the frontier nodes, or the drawn children.

    Rows are the frontier nodes of all growing trees, tree by tree.

    Attributes:
        tokens: token ids `[rows, children]`.
        path_logprobs: log-probabilities `[rows, children]` of the paths from the roots to them.
        layers: per growing tree, its rows as the policy sees them.
        masks: per growing tree, bool `[frontier, children]`: which children join the tree.
    """

    tokens: Array
    path_logprobs: Array
    layers: list[Layer]
    masks: list[Array]


class _Level(NamedTuple):
    """The nodes that join the trees on a level, tree by tree: each attribute has an entry per node.

    Attributes:
        parent_rows: index of each node's parent among the frontier nodes of all trees, in ascending order.
        parents: index of each node's parent in its tree.
        tokens: token ids.
        path_logprobs: log-probabilities of the paths from the roots.
        scores: the policy's scores.
        expand_flags: whether the policy expands the nodes.
    """

    parent_rows: list[int]
    parents: list[int]
    tokens: list[int]
    path_logprobs: list[float]
    scores: list[float]
    expand_flags: list[bool]

    def add_to(self, tree: GrowingTree, columns: slice, row: int) -> None:
        """Add the nodes of one tree, and make those that the policy expands its frontier.

        Args:
            tree: the tree.
            columns: which entries are its nodes.
            row: the row of the first node of its present frontier.
        """
        tree.first = len(tree.tokens)
        tree.add(self.tokens[columns], self.parents[columns], self.path_logprobs[columns], self.scores[columns])
        tree.above = self.parent_rows[columns]
        tree.row = row
        tree.frontier = [node for node, expands in enumerate(self.expand_flags[columns], tree.first) if expands]


class Growth:
    """The trees of one round while they grow. Arguments are those of `grow`.

    Trees are small and numpy calls are slow, so one call handles a level of all trees. Arrays have a row per frontier
    node, tree by tree. A policy sees the rows of one tree.
    """

    def __init__(
        self,
        policy: TreePolicy,
        trees: Sequence[GrowingTree],
        proposal: Proposal,
        randomness: Sequence[Randomness],
        vocab: int | None,
        limits: Limits | None,
    ) -> None:
        self._policy = policy
        self._trees = trees
        self._proposal = proposal
        self._randomness = randomness
        self._vocab = vocab
        self._limits = limits
        self._draws = proposal is not Proposal.TOP_K
        self._may_exceed = policy.reranks and not self._draws
        self._is_foreign = not type(policy).__module__.startswith("drafttree.policies.")
        self._hooks = {hook for hook in HOOKS if getattr(type(policy), hook, None) is not getattr(TreePolicy, hook)}
        # per row: the frontier node, the log-probability of its path, and its label
        self._nodes = np.zeros(len(trees), dtype=int)
        self._paths = np.zeros(len(trees), dtype=np.float32)
        self._labels: Array | None = None
        # the same for each node of the newest level
        self._level_paths = self._paths
        self._level_labels: Array | None = None

    def add_levels(self, draft: DraftRows, ends: Callable[[Exception], bool]) -> None:
        """Grow the trees until no node is left to expand, or an error `ends` them. Arguments are those of `grow`."""
        policy = self._policy
        limit = max(tree.limit for tree in self._trees)
        levels = min(limit, policy.levels() or limit) if policy.budget > 1 else 0
        drafting = True
        is_chain = policy.is_chain and not self._limits and not self._draws
        try:
            for depth in range(1, levels + 1):
                drafting = True
                rows = draft.draft_root() if depth == 1 else draft.draft_level(self.frontiers())
                drafting = False
                self.add_level(rows, depth)
                if depth == levels or not self.narrow(depth):
                    break
                if depth == 1 and is_chain:
                    drafting = True
                    if self.add_chains(draft, min(levels, policy.budget - 1) - 1):
                        break
        except Exception as error:
            if not ((drafting or is_out_of_memory(error)) and ends(error)):
                raise

    def frontiers(self) -> list[Frontier]:
        """The frontier of each tree, in the form that drafters take."""
        return [
            Frontier(
                [tree.tokens[node] for node in tree.frontier],
                [tree.above[node - tree.first] - tree.row for node in tree.frontier],
            )
            for tree in self._trees
        ]

    def add_level(self, logits: DraftLogits | Candidates, depth: int) -> None:
        """Add children of the frontier nodes to the trees, and make those that the policy expands the frontiers.

        Args:
            logits: the draft's `[rows, vocab]`; a tensor if children are drawn.
            depth: the depth of the children.
        """
        self._growing = [tree for tree in self._trees if tree.frontier]
        children = self._children(logits, depth)
        level = self._level(children)
        row = 0
        begin = 0
        for tree, mask in zip(self._growing, children.masks, strict=True):
            next_row = row + len(tree.frontier)
            end = bisect_left(level.parent_rows, next_row, begin)
            level.add_to(tree, slice(begin, end), row)
            if tree.observer:
                tree.observer.joined(children.tokens[row:next_row], mask)
                leaves = [node for node in range(tree.first, len(tree.tokens)) if node not in tree.frontier]
                tree.observer.ended(leaves, Rule.EXPAND)
            row = next_row
            begin = end

    def _children(self, logits: DraftLogits | Candidates, depth: int) -> _Children:
        """The best candidates and which of them the policy keeps. For draws, the same number of drawn children."""
        logprobs, tokens = best_candidates(logits, self._policy.candidates(depth), self._vocab)
        paths, layers = self._layers(logprobs, depth)
        masks = [self._kept(layer, tree) for layer, tree in zip(layers, self._growing, strict=True)]
        if self._draws:
            assert isinstance(logits, Tensor)
            tokens, logprobs, counts = self._draw(layers, masks, logits)
            paths, layers = self._layers(logprobs, depth)
            masks = [layer.rank < tree_counts for layer, tree_counts in zip(layers, counts, strict=True)]
        return _Children(tokens, paths, layers, masks)

    def _level(self, children: _Children) -> _Level:
        """The children that join the trees, with the policy's scores, labels and choice of what to expand."""
        keep_mask = _joined(children.masks)
        flat_indices = keep_mask.reshape(-1).nonzero()[0]
        rows = flat_indices // keep_mask.shape[1]
        self._level_paths = children.path_logprobs.reshape(-1)[flat_indices]
        path_logprobs = self._level_paths.tolist()
        scores = self._scores(children.layers, flat_indices)
        self._level_labels = self._child_labels(children.layers, flat_indices)
        expand_flags = self._expand_flags(children, flat_indices)
        return _Level(
            parent_rows=rows.tolist(),
            parents=self._nodes[rows].tolist(),
            tokens=children.tokens.reshape(-1)[flat_indices].tolist(),
            path_logprobs=path_logprobs,
            scores=path_logprobs if scores is None else scores,
            expand_flags=[True] * len(path_logprobs) if expand_flags is None else expand_flags,
        )

    def _scores(self, layers: Sequence[Layer], flat_indices: Array) -> list[float] | None:
        """The policy's scores of the children at these flat indices; None if these are the path log-probabilities."""
        if "score" not in self._hooks or all(layer.scores is layer.path_logprobs for layer in layers):
            return None
        return _joined([layer.scores for layer in layers]).reshape(-1)[flat_indices].tolist()

    def _child_labels(self, layers: Sequence[Layer], flat_indices: Array) -> Array | None:
        """The policy's labels of the children at these flat indices; None if it has no labels."""
        if "label" not in self._hooks:
            return None
        labels = [self._ask("label", layer) for layer in layers]
        return None if labels[0] is None else _joined(labels).reshape(-1)[flat_indices]

    def _expand_flags(self, children: _Children, flat_indices: Array) -> list[bool] | None:
        """Whether the policy expands each child at these flat indices; None if it expands all."""
        if "expand" not in self._hooks:
            return None
        answers = [self._ask("expand", layer) for layer in children.layers]
        if all(answer is None for answer in answers):
            return None
        expand_masks = [
            mask if answer is None else answer & mask for answer, mask in zip(answers, children.masks, strict=True)
        ]
        return _joined(expand_masks).reshape(-1)[flat_indices].tolist()

    def _layers(self, logprobs: Array, depth: int) -> tuple[Array, list[Layer]]:
        """The log-probabilities of all paths `[rows, candidates]`, and per growing tree what the policy sees."""
        paths = self._paths[:, None] + logprobs
        possible_mask = paths > -math.inf
        for values in (logprobs, paths, possible_mask):
            values.setflags(write=False)
        layers = list[Layer]()
        row = 0
        for tree in self._growing:
            rows = slice(row, row := row + len(tree.frontier))
            labels = None if self._labels is None else self._labels[rows]
            arrays = logprobs[rows], paths[rows], possible_mask[rows]
            layers.append(Layer(*arrays, depth, tree, self._score, labels))
        return paths, layers

    def _kept(self, layer: Layer, tree: GrowingTree) -> Array:
        """Bool `[frontier, candidates]`: which candidates the policy keeps.

        Unless children are drawn or the policy re-ranks, they are cut to the budget.
        """
        keep_mask = self._ask("keep", layer)
        if keep_mask is not layer.possible:
            keep_mask = keep_mask & layer.possible
        if self._draws:
            keep_mask = keep_mask & (layer.logprobs >= MIN_LOGPROB)
        if tree.observer:
            tree.observer.kept(tree.frontier, layer, keep_mask)
        room = self._policy.budget - len(tree.tokens)
        if self._may_exceed or self._draws or keep_mask.size <= room or np.count_nonzero(keep_mask) <= room:
            return keep_mask
        return best_mask(layer.scores, keep_mask, room)

    def _score(self, layer: Layer) -> Array:
        return self._ask("score", layer)

    def _ask(self, hook: str, layer: Layer) -> Any:
        """Call a hook of the policy, and check its answer unless the policy is one of this package."""
        answer = getattr(self._policy, hook)(layer)
        return self._checked(hook, answer, layer.logprobs.shape) if self._is_foreign else answer

    def _draw(
        self, layers: Sequence[Layer], masks: Sequence[Array], logits: Tensor
    ) -> tuple[Array, Array, list[Array]]:
        """Draw children of the frontier nodes.

        Args:
            layers: per growing tree, what the policy has seen.
            masks: per growing tree, the candidates that the policy keeps; only their number counts.
            logits: the draft's `[rows, vocab]`.

        Returns:
            Token ids and log-probabilities `[rows, children]` in draw order. Per growing tree, the number of children
            of each frontier node `[frontier, 1]`; further columns have no meaning.
        """
        depth = layers[0].depth
        child_counts = self._child_counts(masks, depth)
        tokens, logprobs = self._drawn(child_counts, logits.log_softmax(-1)[..., : self._vocab], depth).cpu().numpy()
        host_arrays = tokens.astype(np.int64), logprobs.astype(layers[0].logprobs.dtype)
        return *host_arrays, [np.array(tree_counts)[:, None] for tree_counts in child_counts]

    def _child_counts(self, masks: Sequence[Array], depth: int) -> list[list[int]]:
        """Per growing tree and frontier node, how many children to draw.

        As many as the policy keeps candidates, within the limits and the budget.
        """
        child_counts = [mask.sum(1).tolist() for mask in masks]
        if self._limits and (max_children := self._limits.max_children(self._trees, depth)) is not None:
            child_counts = [
                [*map(min, tree_counts, limit)]
                for tree_counts, limit in zip(child_counts, filter(None, max_children), strict=True)
            ]
        for tree_counts, tree in zip(child_counts, self._growing, strict=True):
            room = self._policy.budget - len(tree.tokens)
            for frontier_index, count in enumerate(tree_counts):
                tree_counts[frontier_index] = max(min(count, room), 0)
                room -= count
        return child_counts

    def _drawn(self, child_counts: Sequence[Sequence[int]], rows: Tensor, depth: int) -> Tensor:
        """Draw these numbers of children, and store the distributions they came from in the trees.

        Args:
            child_counts: per growing tree and frontier node, the number of its children.
            rows: the draft's log-probabilities `[rows, vocab]`.
            depth: the depth of the children.

        Returns:
            Float64 `[2, rows, children]`: token ids, which float64 holds exactly, and log-probabilities, in draw order.
        """
        counts = torch.tensor([*chain.from_iterable(child_counts)], device=rows.device)
        probs = rows.masked_fill(counts[:, None] == 0, 0.0).softmax(-1)
        probs = torch.threshold_(probs, math.exp(MIN_LOGPROB), 0.0)
        draws = rows.new_zeros(2, len(rows), max(1, *map(max, child_counts)), dtype=torch.float64)
        draws[1] = -math.inf
        randomness = [
            text_randomness
            for text_randomness, tree in zip(self._randomness, self._trees, strict=True)
            if tree.frontier
        ]
        row = 0
        for tree_counts, tree, text_randomness in zip(child_counts, self._growing, randomness, strict=True):
            tree_rows = slice(row, row := row + len(tree_counts))
            max_children = max(tree_counts)
            node_probs = probs[tree_rows]
            if max_children:
                tokens, node_probs = text_randomness.children(
                    node_probs, counts[tree_rows], max_children, self._proposal, depth
                )
                draws[0, tree_rows, :max_children] = tokens
                draws[1, tree_rows, :max_children] = rows[tree_rows].gather(1, tokens)
            tree.draft_probs.update(zip(tree.frontier, node_probs, strict=True))
        return draws

    def add_chains(self, draft: DraftRows, count: int) -> bool:
        """Draft all further levels of chains in one call, if all trees are chains and the drafter can do so.

        Args:
            draft: the drafter's rows.
            count: levels to draft.

        Returns:
            Whether the levels were added.
        """
        if any(len(tree.frontier) != 1 for tree in self._trees):
            return False
        chains = draft.draft_chain([tree.tokens[-1] for tree in self._trees], count, self._vocab or sys.maxsize)
        if chains is None:
            return False
        paths = np.cumsum([self._paths, *chains[1]], axis=0, dtype=np.float32)[1:]
        for tree, tokens, chain_paths in zip(self._trees, chains[0].T.tolist(), paths.T.tolist(), strict=True):
            for token, path in zip(tokens[: tree.limit - 1], chain_paths, strict=False):
                tree.frontier = [len(tree.tokens) - 1]
                tree.add([token], tree.frontier, [path], [path])
        return True

    def narrow(self, depth: int) -> bool:
        """Narrow the frontiers to the nodes that are expanded next, and return whether there are any.

        A frontier becomes empty if its tree is full or at its last level, or if the policy stops it. Limits narrow the
        other frontiers.

        Args:
            depth: the depth of the frontiers.
        """
        for tree in self._growing:
            ends = tree.limit <= depth or (not self._may_exceed and len(tree.tokens) >= self._policy.budget)
            if tree.frontier and (ends or self._stops(tree)):
                if tree.observer:
                    tree.observer.ended(tree.frontier, self._end(tree) if ends else Rule.STOP)
                tree.frontier = []
        if self._limits:
            for tree, frontier in zip(self._trees, self._limits.choose_frontier(self._trees, depth), strict=True):
                if tree.observer:
                    tree.observer.ended([node for node in tree.frontier if node not in frontier], Rule.EXPAND)
                tree.frontier = [*frontier]
        nodes = list[int]()
        level_indices = list[int]()
        begin = 0
        for tree in self._growing:
            offset = begin - tree.first
            nodes += tree.frontier
            level_indices += [node + offset for node in tree.frontier]
            begin = offset + len(tree.tokens)
        self._nodes = np.array(nodes)
        self._paths = self._level_paths[level_indices]
        if self._level_labels is not None:
            self._labels = self._level_labels[level_indices]
            self._labels.setflags(write=False)
        return bool(level_indices)

    def _end(self, tree: GrowingTree) -> Rule:
        """Why a tree has ended, if its policy has not stopped it."""
        is_full = not self._may_exceed and len(tree.tokens) >= self._policy.budget
        return Rule.BUDGET if is_full else Rule.DEPTH

    def _stops(self, tree: GrowingTree) -> bool:
        """Whether the policy stops a tree at its frontier."""
        if "stop" not in self._hooks:
            return False
        frontier = np.array([tree.path_logprobs[node] for node in tree.frontier], dtype=self._level_paths.dtype)
        answer = self._policy.stop(tree.tree(), frontier)
        return bool(self._checked("stop", answer, ()) if self._is_foreign else answer)

    def _checked(self, hook: str, answer: Any, shape: tuple[int, ...]) -> Any:
        """Check the answer of a policy's hook, and return it as an array of this shape.

        Raises:
            ConfigError: if the answer is not of the kind in `HOOKS`, or does not broadcast to the shape.
        """
        dtype_kind = HOOKS[hook]
        name = f"{type(self._policy).__name__}.{hook}"
        if answer is None and hook in ("expand", "label", "stop"):
            return None
        answer = np.asarray(answer) if isinstance(answer, bool | np.bool_) and not shape else answer
        if isinstance(answer, np.ndarray) and answer.dtype.kind == dtype_kind[0]:
            if answer.shape == shape:
                return answer
            try:
                return np.broadcast_to(answer, shape)
            except ValueError:
                pass
        if isinstance(answer, Tensor):
            raise ConfigError(f"{name} returns a torch tensor; policies decide on numpy arrays, see docs/writing.md")
        is_array = isinstance(answer, np.ndarray)
        description = f"{answer.dtype} {list(answer.shape)}" if is_array else type(answer).__name__
        requirement = f"{dtype_kind} array that fits {list(shape)}" if shape else f"{dtype_kind}, or None"
        raise ConfigError(f"{name} returns {description}; it must return a {requirement}")

    def trees(self) -> list[DraftTree]:
        """The finished trees. A policy that re-ranks keeps the best nodes of each.

        Drawn trees stay whole. With limits, the controller cuts the trees later.
        """
        for tree in self._trees:
            if tree.observer:
                tree.observer.ended(tree.frontier, self._end(tree))
        trees = [tree.tree() for tree in self._trees]
        return [tree.best(self._policy.budget) for tree in trees] if self._may_exceed and not self._limits else trees


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def best_candidates(logits: DraftLogits | Candidates, width: int, vocab: int | None = None) -> tuple[Array, Array]:
    """Read the best tokens of each row of logits from the device.

    Args:
        logits: `[nodes, columns]`, perhaps ranked, or candidates.
        width: tokens per row; all if there are fewer.
        vocab: the number of first columns that may be drafted; None for all. The others only count in the softmax.

    Returns:
        Log-probabilities and token ids `[nodes, width]`, the best first.
    """
    if isinstance(logits, Candidates):
        return logits.best(width, vocab or logits.vocab)
    if isinstance(logits, RankedLogits):
        ranked_candidates = logits.read(width, vocab or sys.maxsize)
        return ranked_candidates or best_candidates(logits.logits(), width, vocab)
    columns = min(logits.shape[-1], vocab or sys.maxsize)
    width = min(width, columns)
    if (candidates := native_candidates(logits, width, columns)) is not None:
        return candidates
    if not logits.is_cpu:
        best_logprobs, best_ids = ranked(logits, width, columns).cpu().numpy()
        return best_logprobs, best_ids.astype(np.int64)
    rows = logits.log_softmax(-1)[..., :columns]
    if width > 1:
        logprobs, tokens = rows.topk(width)
    else:
        tokens = argmax(rows)[..., None]
        logprobs = rows.gather(-1, tokens)
    logprobs = logprobs if logprobs.dtype.itemsize >= 4 else logprobs.float()  # numpy has no bfloat16
    return logprobs.numpy(), tokens.numpy()
