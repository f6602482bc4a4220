"""The shared language: the draft tree, the layer a policy decides on, and the verdict of a verifier.

Everything is a flat tensor with a leading batch axis. Node 0 is the root: the last committed token, whose keys and
values the target has not computed yet. So one target pass covers the root and every drafted node, and nothing is ever
forwarded twice.

What counts toward a budget, for every policy: all nodes of the tree, the root included. A budget of N drafts at most
N - 1 tokens.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from typing import Any

from drafttree.core.lazy import Tensor, torch


class Proposal(StrEnum):
    """The way the children of a node were chosen, which decides which verifiers may judge the tree."""

    TOP_K = "top-k"
    """A deterministic function of the prefix and the draft's probabilities."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """Drawn from the draft without replacement, in draw order."""
    WITH_REPLACEMENT = "with-replacement"
    """Drawn from the draft independently of each other; siblings may be equal."""
    TOP_K_PLUS_SAMPLE = "top-k-plus-sample"
    """All but the last are the draft's best tokens; the last is drawn from the rest."""


@cache
def _impossible() -> Tensor:
    """The log-probability of padding as a tensor: comparing with a Python number takes three times as long."""
    return torch.tensor(-math.inf)


@dataclass(frozen=True)
class DraftTree:
    """A batch of draft trees in breadth-first order, siblings in order of rank.

    Attributes:
        tokens: `[batch, nodes]` token ids.
        parents: `[batch, nodes]` index of each node's parent, -1 for the root.
        path_logprobs: `[batch, nodes]` draft log-probability of the path from the root to the node, 0 for the root;
            -inf marks padding.
        scores: `[batch, nodes]` what the policy ranked the node by, infinite for the root.
        levels: the number of drafted levels; no node is deeper.
        proposal: how children were chosen.
        draft_probs: `[batch, frontier, vocab]` for every level drafted, the distributions the children were drawn from;
            None for top-k trees.
        draft_rows: `[batch, nodes]` index of each node's own distribution among the rows of all levels; -1 for a node
            that was not expanded.
        widths: of the frontiers that the drafter was asked about, the root's first; empty if it was not asked.
        source: which model of the drafter drafted, 0 unless it has several.
        is_chain: whether every node is known to be the parent of the next one.
    """

    tokens: Tensor
    parents: Tensor
    path_logprobs: Tensor
    scores: Tensor
    levels: int
    proposal: Proposal = Proposal.TOP_K
    draft_probs: tuple[Tensor, ...] | None = None
    draft_rows: Tensor | None = None
    widths: tuple[int, ...] = ()
    source: int = 0
    is_chain: bool = False

    @classmethod
    def rooted(cls, tokens: Tensor, proposal: Proposal = Proposal.TOP_K) -> "DraftTree":
        """The tree of a root alone for every sequence, from its token ids `[batch, 1]`."""
        zero = torch.zeros(tokens.shape, device=tokens.device)
        return cls(tokens, torch.full_like(tokens, -1), zero, zero + math.inf, 0, proposal, is_chain=True)

    @property
    def size(self) -> int:
        """Number of nodes, root and padding included."""
        return self.tokens.shape[1]

    @property
    def valid(self) -> Tensor:
        """`[batch, nodes]` bool, False where a node is padding."""
        return self.path_logprobs > _impossible()

    @property
    def node_logprobs(self) -> Tensor:
        """`[batch, nodes]` draft log-probability of each node given its parent: its path's minus its parent's."""
        return self.path_logprobs - self.path_logprobs.gather(1, self.parents.clamp_min(0))

    @cached_property
    def ancestors(self) -> Tensor:
        """`[batch, nodes, nodes]` bool: row i is True at node i and at each of its ancestors."""
        batch, device = len(self.tokens), self.tokens.device
        if self.is_chain:
            return torch.ones(batch, self.size, self.size, dtype=torch.bool, device=device).tril_()
        reach = torch.eye(self.size, dtype=torch.bool, device=device).expand(batch, -1, -1)
        above = self.parents.clamp_min(0)
        for doubling in range(self.levels.bit_length()):
            above = above.gather(1, above) if doubling else above
            reach = reach | reach.gather(1, above[..., None].expand_as(reach))
        return reach

    @cached_property
    def depths(self) -> Tensor:
        """`[batch, nodes]` distance of each node from the root."""
        return self.ancestors.sum(-1) - 1

    def paths(self) -> list[tuple[int, ...]]:
        """The tokens from below the root to each node, for a batch of one tree."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens[0].tolist(), self.parents[0].tolist(), strict=True):
            paths.append(() if parent < 0 else (*paths[parent], token))
        return paths

    @cached_property
    def branches(self) -> list["Branches"]:
        """The trees on the host, one per sequence, in one copy from the device."""
        return [Branches.of(*columns) for columns in self._read()]

    def read(self, column: Tensor) -> list[list[int]]:
        """A column `[batch, nodes]` of whole numbers on the host, in one copy from the device with `branches`."""
        sequences = self._read(column)
        vars(self)["branches"] = [Branches.of(*columns) for *columns, _ in sequences]
        return [read for *_, read in sequences]

    def _read(self, *more: Tensor) -> Sequence[Sequence[list[int]]]:
        """Per sequence the columns that `Branches` are made of, and then some more."""
        rows = () if self.draft_rows is None else (self.draft_rows,)
        columns = (self.tokens, self.parents, self.valid, *rows, *more)
        if self.tokens.is_cpu:
            return list(zip(*(column.tolist() for column in columns), strict=True))
        return torch.stack(columns, 1).tolist()

    def cut(self, sizes: Sequence[int]) -> "DraftTree":
        """Each tree's `best` nodes, as many as its size; what is left over of smaller trees is padding."""
        tree = self.best(max(sizes))
        if min(sizes) == max(sizes):
            return tree
        order = tree.scores.argsort(dim=1, descending=True, stable=True)
        limit = torch.tensor(sizes, device=order.device)[:, None]
        dropped = order.argsort(1) >= limit
        paths, scores = (each.masked_fill(dropped, -torch.inf) for each in (tree.path_logprobs, tree.scores))
        return replace(tree, path_logprobs=paths, scores=scores, is_chain=False)

    def best(self, size: int) -> "DraftTree":
        """The subtree of the `size` nodes with the highest scores, ties to the earlier node; padding goes first.

        A node never scores above its parent, so the result is connected.
        """
        if self.size <= size:
            return self
        order = self.scores.argsort(dim=1, descending=True, stable=True)[:, :size].sort(dim=1).values
        parents = self.parents.gather(1, order)
        return replace(
            self,
            tokens=self.tokens.gather(1, order),
            parents=torch.searchsorted(order, parents, right=True) - 1,  # their places in the order, -1 for the root's
            path_logprobs=self.path_logprobs.gather(1, order),
            scores=self.scores.gather(1, order),
            is_chain=False,
            draft_rows=None if self.draft_rows is None else self.draft_rows.gather(1, order),
        )


@dataclass(frozen=True)
class Branches:
    """One draft tree on the host.

    Attributes:
        tokens: per node, its token id.
        children: per node, its children in order of rank or of drawing.
        rows: per node, the index of the distribution its children were drawn from, -1 for none; empty for top-k trees.
        size: nodes, padding not counted.
    """

    tokens: list[int]
    children: list[list[int]]
    rows: Sequence[int]
    size: int

    @classmethod
    def of(cls, tokens: list[int], parents: list[int], valid: list[int], rows: Sequence[int] = ()) -> "Branches":
        """The tree of these nodes, as `DraftTree` has them."""
        children: list[list[int]] = [[] for _ in tokens]
        for node, parent in enumerate(parents):
            if valid[node] and parent >= 0:
                children[parent].append(node)
        return cls(tokens, children, rows, sum(valid))

    def child(self, node: int, token: int) -> int | None:
        """The first child of a node with this token, None where there is none."""
        return next((child for child in self.children[node] if self.tokens[child] == token), None)


Level = tuple[Tensor, Tensor, Tensor, Tensor]


@lru_cache(maxsize=4)
def _root_columns(batch: int, device: "torch.device") -> tuple[Tensor, Tensor, Tensor]:
    """The roots' parents, path log-probabilities and scores; a tree is given copies."""
    tree = DraftTree.rooted(torch.zeros(batch, 1, dtype=torch.long, device=device))
    return tree.parents, tree.path_logprobs, tree.scores


class TreeBuilder:
    """A draft tree while it grows, a level at a time.

    Args:
        root: `[batch, 1]` token ids of the roots.

    Attributes:
        size: columns so far, root and padding included.
    """

    def __init__(self, root: Tensor) -> None:
        self.size = 1
        self._padding: Tensor | None = None
        self._levels: list[Level] = [(root, *_root_columns(len(root), root.device))]

    @property
    def levels(self) -> list[Level]:
        """The tokens, parents, path log-probabilities and scores of every level, the root's first."""
        return self._levels

    @property
    def padded(self) -> bool:
        """Whether some of the columns may be padding."""
        return self._padding is not None

    @property
    def nodes(self) -> Tensor:
        """`[batch, 1]` nodes so far, the root included and padding not."""
        sizes = torch.full_like(self._levels[0][0], self.size)
        return sizes if self._padding is None else sizes - self._padding

    def add(
        self, tokens: Tensor, parents: Tensor, path_logprobs: Tensor, scores: Tensor, *, padded: bool = True
    ) -> None:
        """Add a level; each tensor is `[batch, width]` and as in `DraftTree`. One without columns is no level.

        `padded` says whether some of the columns may be padding.
        """
        if not tokens.shape[1]:
            return
        self._levels.append((tokens, parents, path_logprobs, scores))
        self.size += tokens.shape[1]
        if padded:
            missing = path_logprobs.isneginf().sum(1, keepdim=True)
            self._padding = missing if self._padding is None else self._padding + missing

    def trim(self, width: int) -> None:
        """Drop the last level's columns from `width` on, which are padding."""
        tokens, parents, path_logprobs, scores = self._levels.pop()
        self.size += width - tokens.shape[1]
        if self._padding is not None:
            self._padding = self._padding - (tokens.shape[1] - width)
        if width:
            level = (tokens[:, :width], parents[:, :width], path_logprobs[:, :width], scores[:, :width])
            self._levels.append(level)

    def tree(self) -> DraftTree:
        """The tree so far."""
        columns = zip(*self._levels, strict=True)
        levels = len(self._levels) - 1
        is_chain = self.size == levels + 1
        return DraftTree(*(torch.cat(column, 1) for column in columns), levels=levels, is_chain=is_chain)


@dataclass(frozen=True)
class PartialTree:
    """A draft tree while it grows, as a policy may look at it.

    Its tensors are copies: a policy that wrote into the tree could drop nodes that were drawn, which is not lossless.
    """

    _tree: TreeBuilder

    @property
    def size(self) -> int:
        """Columns so far, root and padding included."""
        return self._tree.size

    @property
    def last_level(self) -> int:
        """Columns of the last level, which are the tree's last."""
        return self._tree.levels[-1][0].shape[1]

    @property
    def path_logprobs(self) -> Tensor:
        """`[batch, size]` path log-probability of every node; -inf marks padding."""
        return torch.cat([path_logprobs for _, _, path_logprobs, _ in self._tree.levels], 1)

    @property
    def scores(self) -> Tensor:
        """`[batch, size]` what the policy ranks nodes by; -inf marks padding."""
        return torch.cat([scores for *_, scores in self._tree.levels], 1)


@dataclass(frozen=True)
class Layer:
    """The best candidates of every frontier node, sorted by probability: all that a policy sees.

    Attributes:
        logprobs: `[batch, frontier, candidates]` draft log-probability given the frontier node.
        parent_logprobs: `[batch, frontier]` path log-probability of the frontier nodes; -inf marks padding.
        parent_scores: `[batch, frontier]` what the policy's `score` gave the frontier nodes, 0 for the root.
        depth: level the candidates would join, 1 for children of the root.
        tree: the trees so far, without this level.
        score: the policy's, which gives `scores`.
        labels: `[batch, frontier]` what the policy's `label` gave the frontier nodes, or None.
        states: per sequence, what the policy has learned of its text; empty for a policy that learns nothing.
        source: which model of the drafter drafts, 0 unless it has several.
    """

    logprobs: Tensor
    parent_logprobs: Tensor
    parent_scores: Tensor
    depth: int
    tree: PartialTree
    score: Callable[["Layer"], Tensor]
    labels: Tensor | None = None
    states: tuple[Any, ...] = ()
    source: int = 0

    @cached_property
    def scores(self) -> Tensor:
        """`[batch, frontier, candidates]` what budget cuts and re-ranking order by; the policy is asked once."""
        return self.score(self)

    @cached_property
    def rank(self) -> Tensor:
        """`[candidates]` rank of a candidate among its siblings, 0 for the most probable."""
        return torch.arange(self.logprobs.shape[-1], device=self.logprobs.device)

    @cached_property
    def path_logprobs(self) -> Tensor:
        """`[batch, frontier, candidates]` log-probability of each candidate's path from the root."""
        return self.parent_logprobs[..., None] + self.logprobs

    @property
    def confidence(self) -> Tensor:
        """`[batch, frontier, 1]` probability of each frontier node's best candidate."""
        return self.logprobs[..., :1].exp()

    @cached_property
    def possible(self) -> Tensor:
        """`[batch, frontier, candidates]` mask of all candidates that are possible at all."""
        return self.path_logprobs > _impossible()


@dataclass(frozen=True)
class Verdict:
    """The outcome of verifying a batch of trees, on the host, where the loop goes on from it.

    Attributes:
        paths: per sequence, the accepted node indices from the root (0) down.
        bonus: per sequence, the token that follows the accepted path.
    """

    paths: Sequence[list[int]]
    bonus: Sequence[int]

    @cached_property
    def host(self) -> list[tuple[list[int], int]]:
        """Per sequence the accepted path and the bonus token."""
        return [(list(path), bonus) for path, bonus in zip(self.paths, self.bonus, strict=True)]
