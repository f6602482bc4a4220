"""Growing draft trees: the machinery every policy shares, for one text and for many.

Level by level: the drafter's logits of the frontiers are read from the device, a policy sees the best candidates of one
text after the other and says by two masks which of them join its tree and which of those are expanded, and this module
cuts to the budget and hands the next frontiers to the drafter. So the number of draft passes is the depth of the
deepest tree, whatever its width.

Any policy's tree can be drawn. Its masks then say how many children a node gets, from its distribution and from what
was drawn before; only then are they drawn, and every drawn node stays in the tree. A budget is kept by not drawing. So
a verifier may rely on the distribution it is told the children came from.
"""

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.candidates import Candidates
from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import is_out_of_memory
from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, GrowingTree, GrowthObserver, Layer, Proposal, Rule
from drafttree.core.vocab_ops import argmax
from drafttree.drafters.session import Frontier
from drafttree.models.inference import in_inference_mode
from drafttree.models.native.kernels import native_candidates
from drafttree.policies.base import TreePolicy, best_mask

MIN_LOGPROB = -80.0
"""Log-probability below which a token is not drawn: its probability would be lost in float32."""
HOOKS = {"keep": "bool", "expand": "bool", "score": "float", "label": "integer", "stop": "bool"}
"""What a policy is asked for, and of which kind its answers are."""


class DraftRows(Protocol):
    """The drafter's logits for the trees of a batch, as the policy is to see them."""

    def root(self) -> Tensor | Candidates:
        """Return logits `[batch, vocab]` of the token after each root; the first draft pass of a round.

        They are `Candidates` where the drafter proposes few tokens.
        """
        ...

    def expand(self, frontiers: Sequence[Frontier]) -> Tensor | Candidates:
        """Return logits `[nodes, vocab]` of the token after each node of the new frontiers, one after the other.

        They may be `Candidates`, too.

        Args:
            frontiers: frontiers of every sequence, empty for one that drafts no further.
        """
        ...

    def chain(self, tokens: Sequence[int], count: int, allowed: int) -> tuple[Array, Array] | None:
        """Return chains behind the trees' only nodes; see `drafttree.drafters.base.SharedDrafter`."""
        return None


class Limits(Protocol):
    """Narrows the trees of all requests beyond what the policy does; who gives them cuts the finished trees, too.

    Attributes:
        chances: of each tree, the log-probabilities that its first nodes are accepted, as far as they are known; None
            where they are not.
    """

    chances: Any

    def expand(self, texts: Sequence[GrowingTree], depth: int) -> Sequence[Sequence[int]]:
        """Which of the nodes that the policy would expand are worth it, per tree, in order.

        Args:
            texts: the trees so far; the `frontier` of each is what the policy would expand.
            depth: the depth of these nodes.
        """
        ...

    def children(self, texts: Sequence[GrowingTree], depth: int) -> Sequence[Sequence[int]] | None:
        """How many children to draw at most for each node of the frontiers; None for as many as the policy keeps.

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

    Where the drafter fails or memory runs out, trees can end at the level that they have. A drawn level stays: whether
    it is dropped would depend on what was drawn, which is not lossless.

    Args:
        policy: decides which candidates join the trees and which are expanded.
        draft: gives the logits of a level, as the policy is to see them.
        roots: the last committed token of each text.
        max_levels: per text, the depth that no node exceeds; at least 1 for each of several texts.
        states: per text, what the policy has learned of it.
        proposal: how children are chosen: the draft's best tokens, or in which way they are drawn.
        randomness: per text, the randomness of this round; of use where children are drawn.
        vocab: the vocab of the target; columns beyond it count among the probabilities and are never drafted. None for
            no such.
        limits: leaves out nodes that the policy would expand, or draw; a policy that re-ranks then cuts nothing itself.
        source: which model of the drafter drafts.
        ends: whether the trees end where the drafter has raised this, or memory ran out; else it is raised.
        observers: per text, who sees its tree grow; None where nobody does.

    Returns:
        The trees to verify, at most `policy.budget` nodes each.

    Raises:
        ConfigError: the policy answers with something else than masks.
    """
    trees = [
        GrowingTree(root, limit, state, proposal, source, observer)
        for root, limit, state, observer in zip(
            roots, max_levels, states, observers or repeat(None, len(roots)), strict=True
        )
    ]
    growth = Growth(policy, trees, proposal, randomness, vocab, limits)
    limit = max(max_levels)
    levels = min(limit, policy.levels() or limit) if policy.budget > 1 else 0
    drafting = True
    is_chain = policy.is_chain and not limits and proposal is Proposal.TOP_K
    try:
        for depth in range(1, levels + 1):
            drafting = True
            rows = draft.root() if depth == 1 else draft.expand(growth.frontiers())
            drafting = False
            growth.add_level(rows, depth)
            if depth == levels or not growth.narrow(depth):
                break
            if depth == 1 and is_chain:
                drafting = True
                if growth.add_chains(draft, min(levels, policy.budget - 1) - 1):
                    break
    except Exception as error:
        if not ((drafting or is_out_of_memory(error)) and ends(error)):
            raise
    return growth.trees()


class Growth:
    """The trees of one round while they grow, from their roots. Arguments are those of `grow`.

    Trees are small and calls of numpy dear, so a level is arrays: a row for each node of the frontiers, those of all
    texts behind each other. A policy sees the rows of one text.
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
        # Of each row: the node, its path's log-probability and its label.
        self._nodes = np.zeros(len(trees), dtype=int)
        self._paths = np.zeros(len(trees), dtype=np.float32)
        self._labels: Array | None = None

    def frontiers(self) -> list[Frontier]:
        """The nodes to expand, as a drafter is told of them."""
        return [
            Frontier(
                [tree.tokens[node] for node in tree.frontier],
                [tree.above[node - tree.first] - tree.row for node in tree.frontier],
            )
            for tree in self._trees
        ]

    def add_level(self, logits: Tensor | Candidates, depth: int) -> None:
        """Add the children of the frontiers to the trees.

        Args:
            logits: `[rows, vocab]` of the draft; no candidates where children are drawn.
            depth: the depth of the children.
        """
        self._growing = [tree for tree in self._trees if tree.frontier]
        logprobs, tokens = best_candidates(logits, self._policy.candidates(depth), self._vocab)
        paths, layers = self._layers(logprobs, depth)
        masks = [self._kept(layer, tree) for layer, tree in zip(layers, self._growing, strict=True)]
        if self._draws:
            assert isinstance(logits, Tensor)
            tokens, logprobs, counts = self._draw(layers, masks, logits)
            paths, layers = self._layers(logprobs, depth)
            masks = [layer.rank < tree_counts for layer, tree_counts in zip(layers, counts, strict=True)]
        # What joins, of all texts at once.
        keep_mask = _joined(masks)
        flat_indices = keep_mask.reshape(-1).nonzero()[0]
        paths = paths.reshape(-1)[flat_indices]
        rows = flat_indices // keep_mask.shape[1]
        labels = None
        parent_rows = rows.tolist()
        parents = self._nodes[rows].tolist()
        ids = tokens.reshape(-1)[flat_indices].tolist()
        values = paths.tolist()
        scores = values
        expand_flags = [True] * len(values)
        if "score" in self._hooks and any(layer.scores is not layer.path_logprobs for layer in layers):
            scores = _joined([layer.scores for layer in layers]).reshape(-1)[flat_indices].tolist()
        if "label" in self._hooks and (answers := [self._ask("label", layer) for layer in layers])[0] is not None:
            labels = _joined(answers).reshape(-1)[flat_indices]
        if "expand" in self._hooks:
            answers = [self._ask("expand", layer) for layer in layers]
            if any(answer is not None for answer in answers):
                answers = [
                    mask if answer is None else answer & mask for answer, mask in zip(answers, masks, strict=True)
                ]
                expand_flags = _joined(answers).reshape(-1)[flat_indices].tolist()
        self._level = paths, labels
        row = begin = 0
        for tree, mask in zip(self._growing, masks, strict=True):
            width = len(tree.frontier)
            first_node = len(tree.tokens)
            end = bisect_left(parent_rows, row + width, begin)
            tree_slice = slice(begin, end)
            tree.add(ids[tree_slice], parents[tree_slice], values[tree_slice], scores[tree_slice])
            tree.first = first_node
            tree.above = parent_rows[tree_slice]
            tree.row = row
            tree.frontier = [node for node, flag in enumerate(expand_flags[tree_slice], first_node) if flag]
            if tree.observer:
                tree.observer.joined(tokens[row : row + width], mask)
                leaves = [node for node, flag in enumerate(expand_flags[tree_slice], first_node) if not flag]
                tree.observer.ended(leaves, Rule.EXPAND)
            row += width
            begin = end

    def _layers(self, logprobs: Array, depth: int) -> tuple[Array, list[Layer]]:
        """The log-probabilities of all paths, and what the policy sees of each text."""
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
        """Which candidates the policy keeps, within the budget."""
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
        """What the policy answers; it is checked if its class is not one of ours."""
        answer = getattr(self._policy, hook)(layer)
        return self._checked(hook, answer, layer.logprobs.shape) if self._is_foreign else answer

    def _draw(
        self, layers: Sequence[Layer], masks: Sequence[Array], logits: Tensor
    ) -> tuple[Array, Array, list[Array]]:
        """As many drawn children as the policy keeps candidates and the budget has room for.

        Returns:
            Token ids and log-probabilities `[nodes, children]` in draw order, and how many each node of a text has
            `[frontier, 1]`; those beyond mean nothing.
        """
        depth = layers[0].depth
        child_counts = [mask.sum(1).tolist() for mask in masks]
        if self._limits and (max_children := self._limits.children(self._trees, depth)) is not None:
            child_counts = [
                [*map(min, tree_counts, limit)]
                for tree_counts, limit in zip(child_counts, filter(None, max_children), strict=True)
            ]
        for tree_counts, tree in zip(child_counts, self._growing, strict=True):
            room = self._policy.budget - len(tree.tokens)
            for frontier_index, count in enumerate(tree_counts):
                tree_counts[frontier_index] = max(min(count, room), 0)
                room -= count
        rows = logits.log_softmax(-1)[..., : self._vocab]
        counts = torch.tensor([count for tree_counts in child_counts for count in tree_counts], device=rows.device)
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
        tokens, logprobs = draws.cpu().numpy()
        host_arrays = tokens.astype(np.int64), logprobs.astype(layers[0].logprobs.dtype)
        return *host_arrays, [np.array(tree_counts)[:, None] for tree_counts in child_counts]

    def add_chains(self, draft: DraftRows, count: int) -> bool:
        """Add all further levels of trees that are chains, where the drafter drafts them in one call."""
        if any(len(tree.frontier) != 1 for tree in self._trees):
            return False
        chains = draft.chain([tree.tokens[-1] for tree in self._trees], count, self._vocab or sys.maxsize)
        if chains is None:
            return False
        paths = np.cumsum([self._paths, *chains[1]], axis=0, dtype=np.float32)[1:]
        for tree, tokens, chain_paths in zip(self._trees, chains[0].T.tolist(), paths.T.tolist(), strict=True):
            for token, path in zip(tokens[: tree.limit - 1], chain_paths, strict=False):
                tree.frontier = [len(tree.tokens) - 1]
                tree.add([token], tree.frontier, [path], [path])
        return True

    def narrow(self, depth: int) -> bool:
        """Choose the nodes to expand next; whether there are any."""
        for tree in self._growing:
            ends = tree.limit <= depth or (not self._may_exceed and len(tree.tokens) >= self._policy.budget)
            if tree.frontier and (ends or self._stops(tree)):
                if tree.observer:
                    tree.observer.ended(tree.frontier, self._end(tree) if ends else Rule.STOP)
                tree.frontier = []
        if self._limits:
            for tree, frontier in zip(self._trees, self._limits.expand(self._trees, depth), strict=True):
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
        paths, labels = self._level
        self._nodes = np.array(nodes)
        self._paths = paths[level_indices]
        if labels is not None:
            self._labels = labels[level_indices]
            self._labels.setflags(write=False)
        return bool(level_indices)

    def _end(self, tree: GrowingTree) -> Rule:
        """What ends a tree that its policy has not stopped."""
        is_full = not self._may_exceed and len(tree.tokens) >= self._policy.budget
        return Rule.BUDGET if is_full else Rule.DEPTH

    def _stops(self, tree: GrowingTree) -> bool:
        """Whether the policy ends a tree here."""
        if "stop" not in self._hooks:
            return False
        frontier = np.array([tree.path_logprobs[node] for node in tree.frontier], dtype=self._level[0].dtype)
        answer = self._policy.stop(tree.tree(), frontier)
        return bool(self._checked("stop", answer, ()) if self._is_foreign else answer)

    def _checked(self, hook: str, found: Any, shape: tuple[int, ...]) -> Any:
        """What a policy, which may be a user's own, has answered.

        Raises:
            ConfigError: it is no array of the kind that is wanted, or does not fit the shape.
        """
        dtype_kind = HOOKS[hook]
        name = f"{type(self._policy).__name__}.{hook}"
        if found is None and hook in ("expand", "label", "stop"):
            return None
        found = np.asarray(found) if isinstance(found, bool | np.bool_) and not shape else found
        if isinstance(found, np.ndarray) and found.dtype.kind == dtype_kind[0]:
            if found.shape == shape:
                return found
            try:
                return np.broadcast_to(found, shape)
            except ValueError:
                pass
        if isinstance(found, Tensor):
            raise ConfigError(f"{name} returns a torch tensor; policies decide on numpy arrays, see docs/writing.md")
        description = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        requirement = f"{dtype_kind} array that fits {list(shape)}" if shape else f"{dtype_kind}, or None"
        raise ConfigError(f"{name} returns {description}; it must return a {requirement}")

    def trees(self) -> list[DraftTree]:
        """The trees: cut to the best nodes of a policy that re-ranks, unless they were drawn, when every node stays."""
        for tree in self._trees:
            if tree.observer:
                tree.observer.ended(tree.frontier, self._end(tree))
        trees = [tree.tree() for tree in self._trees]
        return [tree.best(self._policy.budget) for tree in trees] if self._may_exceed and not self._limits else trees


def _joined(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def best_candidates(logits: Tensor | Candidates, width: int, vocab: int | None = None) -> tuple[Array, Array]:
    """The log-probabilities and token ids of the best tokens of rows of logits, on the host.

    Args:
        logits: `[nodes, columns]`, or candidates.
        width: how many are wanted of a row.
        vocab: columns of tokens that may be drafted, None for all; the others count among the probabilities.

    Returns:
        Log-probabilities and ids `[nodes, width]`, or as many columns as there are; the best first.
    """
    if isinstance(logits, Candidates):
        return logits.best(width, vocab or logits.vocab)
    columns = min(logits.shape[-1], vocab or sys.maxsize)
    width = min(width, columns)
    if (candidates := native_candidates(logits, width, columns)) is not None:
        return candidates
    rows = logits.log_softmax(-1)[..., :columns]
    if width > 1:
        logprobs, tokens = rows.topk(width)
    else:
        tokens = argmax(rows)[..., None]
        logprobs = rows.gather(-1, tokens)
    logprobs = logprobs if logprobs.dtype.itemsize >= 4 else logprobs.float()  # numpy knows no narrower numbers
    if rows.is_cpu:
        return logprobs.numpy(), tokens.numpy()
    # in one read; float32 holds ids below 2^24
    host_logprobs, host_tokens = torch.stack((logprobs, tokens.to(logprobs.dtype))).cpu().numpy()
    return host_logprobs, host_tokens.astype(np.int64)
