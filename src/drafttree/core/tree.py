"""The shared language: the draft tree, the layer a policy decides on, and the verdict of a verifier.

Everything is a flat tensor with a leading batch axis. Node 0 is the root: the last committed token, whose keys and
values the target has not computed yet. So one target pass covers the root and every drafted node, and nothing is ever
forwarded twice.

What counts toward a budget, for every policy: all nodes of the tree, the root included. A budget of N drafts at most
N - 1 tokens.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch
from torch import Tensor


class Proposal(StrEnum):
    """How the children of a node were chosen, which decides who may judge the tree."""

    TOP_K = "selected"
    """A deterministic function of the prefix and the draft's probabilities."""
    WITHOUT_REPLACEMENT = "sampled"
    """Drawn from the draft without replacement, in draw order."""
    WITH_REPLACEMENT = "independent"
    """Drawn from the draft independently of each other; siblings may be equal."""
    TOP_K_PLUS_SAMPLE = "hub"
    """All but the last are the draft's best tokens; the last is drawn from the rest."""


@dataclass(frozen=True)
class DraftTree:
    """A batch of draft trees in breadth-first order, siblings in order of rank.

    Attributes:
        tokens: `[batch, nodes]` token ids.
        parents: `[batch, nodes]` index of each node's parent, -1 for the root.
        logprobs: `[batch, nodes]` draft log-probability of the node given its parent, 0 for the root.
        path_logprobs: `[batch, nodes]` sum of `logprobs` from the root; -inf marks padding.
        scores: `[batch, nodes]` what the policy ranked the node by, infinite for the root.
        levels: the number of drafted levels; no node is deeper.
        proposal: how children were chosen.
        draft_probs: `[batch, frontier, vocab]` for every level drafted, the distributions the children were drawn from;
            None where they were selected.
        draft_rows: `[batch, nodes]` row of each node's own distribution, counted through the levels; -1 where it was
            not expanded.
    """

    tokens: Tensor
    parents: Tensor
    logprobs: Tensor
    path_logprobs: Tensor
    scores: Tensor
    levels: int
    proposal: Proposal = Proposal.TOP_K
    draft_probs: tuple[Tensor, ...] | None = None
    draft_rows: Tensor | None = None

    @classmethod
    def rooted(cls, tokens: Tensor, proposal: Proposal = Proposal.TOP_K) -> "DraftTree":
        """The tree of a lone root per sequence, from its token ids `[batch, 1]`."""
        zero = torch.zeros(tokens.shape, device=tokens.device)
        return cls(tokens, torch.full_like(tokens, -1), zero, zero, zero + math.inf, 0, proposal)

    @property
    def size(self) -> int:
        """Number of nodes, root and padding included."""
        return self.tokens.shape[1]

    @property
    def valid(self) -> Tensor:
        """`[batch, nodes]` bool, False where a node is padding."""
        return self.path_logprobs.isfinite()

    @cached_property
    def ancestors(self) -> Tensor:
        """`[batch, nodes, nodes]` bool: row i is True at node i and at each of its ancestors."""
        reach = torch.eye(self.size, device=self.tokens.device).expand(len(self.tokens), -1, -1)
        if self.levels:
            up = torch.zeros_like(reach).scatter_(2, self.parents.clamp_min(0)[..., None], 1.0)
            reach = reach.maximum(up)
            for _ in range((self.levels - 1).bit_length()):
                reach = (reach @ reach).clamp_max_(1.0)
        return reach > 0

    @cached_property
    def depths(self) -> Tensor:
        """`[batch, nodes]` distance of each node from the root."""
        return self.ancestors.sum(-1) - 1

    def paths(self) -> list[tuple[int, ...]]:
        """The tokens from below the root to each node of a lone tree."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens[0].tolist(), self.parents[0].tolist(), strict=True):
            paths.append(() if parent < 0 else (*paths[parent], token))
        return paths

    @cached_property
    def branches(self) -> list["Branches"]:
        """The trees on the host, one per sequence."""
        nodes = torch.stack((self.tokens, self.parents, self.valid.long()), 1).tolist()
        return [Branches.of(*columns) for columns in nodes]

    def best(self, size: int) -> "DraftTree":
        """The subtree of the `size` nodes with the highest scores, ties to the earlier node.

        A node never scores above its parent, so the result is connected.
        """
        if self.size <= size:
            return self
        order = self.scores.argsort(dim=1, descending=True, stable=True)[:, :size].sort(dim=1).values
        renamed = torch.full_like(self.parents, -1).scatter_(
            1, order, torch.arange(size, device=order.device).expand_as(order)
        )
        parents = self.parents.gather(1, order)
        return DraftTree(
            tokens=self.tokens.gather(1, order),
            parents=renamed.gather(1, parents.clamp_min(0)).masked_fill(parents < 0, -1),
            logprobs=self.logprobs.gather(1, order),
            path_logprobs=self.path_logprobs.gather(1, order),
            scores=self.scores.gather(1, order),
            levels=self.levels,
        )


@dataclass(frozen=True)
class Branches:
    """One draft tree on the host.

    Attributes:
        tokens: per node, its token id.
        children: per node, its children in order of rank or of drawing.
    """

    tokens: list[int]
    children: list[list[int]]

    @classmethod
    def of(cls, tokens: list[int], parents: list[int], valid: list[int]) -> "Branches":
        """The tree of these nodes, as `DraftTree` has them."""
        children: list[list[int]] = [[] for _ in tokens]
        for node, parent in enumerate(parents):
            if valid[node] and parent >= 0:
                children[parent].append(node)
        return cls(tokens, children)

    def child(self, node: int, token: int) -> int | None:
        """The first child of a node with this token, None where there is none."""
        return next((child for child in self.children[node] if self.tokens[child] == token), None)


class TreeBuilder:
    """A draft tree while it grows, a level at a time.

    Args:
        root: `[batch, 1]` token ids of the roots.

    Attributes:
        size: nodes so far, root and padding included.
        levels: drafted levels so far.
    """

    def __init__(self, root: Tensor) -> None:
        self.size = 1
        self.levels = 0
        self._tree = DraftTree.rooted(root)
        self._pending: list[tuple[Tensor, ...]] = []

    def add(self, tokens: Tensor, parents: Tensor, logprobs: Tensor, path_logprobs: Tensor, scores: Tensor) -> None:
        """Add a level; each argument is `[batch, width]` and as in `DraftTree`. One without nodes is no level."""
        if not tokens.shape[1]:
            return
        self._pending.append((tokens, parents, logprobs, path_logprobs, scores))
        self.size += tokens.shape[1]
        self.levels += 1

    def tree(self) -> DraftTree:
        """The tree so far."""
        if self._pending:
            old = self._tree
            first = (old.tokens, old.parents, old.logprobs, old.path_logprobs, old.scores)
            columns = zip(first, *self._pending, strict=True)
            self._tree = DraftTree(*(torch.cat(column, 1) for column in columns), levels=self.levels)
            self._pending = []
        return self._tree

    def sizes(self) -> Tensor:
        """`[batch, 1]` nodes of each tree so far, padding not counted."""
        return self.tree().valid.sum(1, keepdim=True)

    @property
    def smallest(self) -> int:
        """Nodes of the smallest tree so far, padding not counted."""
        return self.size if len(self._tree.tokens) == 1 else int(self.sizes().amin())


@dataclass(frozen=True)
class Layer:
    """What a policy sees when it decides: the best candidates of every frontier node, sorted by probability.

    Attributes:
        logprobs: `[batch, frontier, candidates]` draft log-probability given the frontier node.
        parent_logprobs: `[batch, frontier]` path log-probability of the frontier nodes; -inf marks padding.
        depth: level the candidates would join, 1 for children of the root.
        budget_left: nodes that may still join the tree, in a batch the smallest one.
        labels: `[batch, frontier]` what the policy's `label` gave the frontier nodes, or None.
    """

    logprobs: Tensor
    parent_logprobs: Tensor
    depth: int
    budget_left: int
    labels: Tensor | None = None

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

    def everything(self) -> Tensor:
        """`[batch, frontier, candidates]` mask of all candidates that are possible at all."""
        return self.logprobs > -torch.inf


@dataclass(frozen=True)
class Verdict:
    """What a verifier says of a batch of trees.

    Attributes:
        paths: per sequence, the accepted node indices from the root (0) down.
        bonus: per sequence, the token that follows the accepted path.
    """

    paths: list[list[int]]
    bonus: list[int]
