"""The shared language: the draft tree, the layer a policy decides on, and the verdict of a verifier.

Trees are kept on the host: one has some sixty nodes, and one operation on a device costs more than all of them. Node 0
is the root: the last committed token, whose keys and values the target has not computed yet. So one target pass covers
the root and every drafted node, and nothing is ever forwarded twice.

What counts toward a budget, for every policy: all nodes of the tree, the root included. A budget of N drafts at most
N - 1 tokens.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from drafttree.core.lazy import Array, Tensor, np


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


class Rule(StrEnum):
    """The rule that kept a token out of a tree, or ended a path."""

    KEEP = "keep"
    """The policy did not keep the candidate; at a leaf, none of its children."""
    BUDGET = "budget"
    """The policy kept it, but the tree was full."""
    RERANK = "rerank"
    """It joined the tree, but was dropped in the end, since other nodes were better."""
    EXPAND = "expand"
    """The policy, or the controller, did not expand the node."""
    STOP = "stop"
    """The policy ended the tree here."""
    DEPTH = "depth"
    """The tree had all levels that the policy, the drafter or the rest of the text allows."""
    WIDTH = "width"
    """The token was not among the candidates that the policy looks at."""
    DRAW = "draw"
    """The token was not drawn, in a tree whose children are drawn."""
    NONE = ""
    """No rule is concerned."""


FORCED = -1
"""The source of tokens that are the only ones a text's constraints allow; no drafter is asked for them."""


@dataclass(frozen=True, eq=False)
class DraftTree:
    """A draft tree in breadth-first order, siblings in order of rank or of drawing. It cannot be changed.

    Attributes:
        tokens: per node, its token id.
        parents: per node, the index of its parent, -1 for the root.
        path_logprobs: per node, the draft log-probability of the path from the root to it, 0 for the root.
        scores: per node, its score by the policy, infinite for the root.
        levels: the number of drafted levels; no node is deeper.
        proposal: how children were chosen.
        draft_probs: by expanded node, `[vocab]` the distribution its children were drawn from; empty
            for top-k trees.
        widths: widths of the frontiers that the drafter was asked about, the root's first; empty if it was not asked.
        source: which model of the drafter drafted, 0 unless it has several; `FORCED` if none did.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    path_logprobs: Sequence[float]
    scores: Sequence[float]
    levels: int
    proposal: Proposal = Proposal.TOP_K
    draft_probs: Mapping[int, Tensor] = field(default_factory=dict)
    widths: tuple[int, ...] = ()
    source: int = 0

    @classmethod
    def rooted(cls, token: int, proposal: Proposal = Proposal.TOP_K) -> "DraftTree":
        """The tree of a root alone."""
        return cls((token,), (-1,), (0.0,), (math.inf,), 0, proposal)

    @classmethod
    def forced(cls, root: int, tokens: Sequence[int], proposal: Proposal, rows: Sequence[Tensor] = ()) -> "DraftTree":
        """A chain of tokens, each with draft probability 1.

        Args:
            root: the last committed token.
            tokens: the tokens of the chain, at least one.
            proposal: how children are chosen.
            rows: per token, the draft's distribution `[vocab]`, for a proposal that draws.
        """
        size = 1 + len(tokens)
        return cls(
            (root, *tokens),
            range(-1, size - 1),
            (0.0,) * size,
            (math.inf, *(0.0,) * len(tokens)),
            len(tokens),
            proposal,
            dict(enumerate(rows)),
            source=FORCED,
        )

    @property
    def size(self) -> int:
        """Number of nodes, the root included."""
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether every node is the parent of the next one."""
        return self.depths[-1] == self.size - 1

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Per node, its children in order of rank or of drawing."""
        children: list[list[int]] = [[] for _ in self.tokens]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(node)
        return tuple(map(tuple, children))

    @property
    def node_logprobs(self) -> list[float]:
        """Per node, its draft log-probability after its parent, 0 for the root."""
        paths = self.path_logprobs
        return [paths[node] - paths[max(parent, 0)] for node, parent in enumerate(self.parents)]

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Per node, its distance from the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def ancestors(self) -> Array:
        """Bool `[nodes, nodes]`: row i is True at node i and at each of its ancestors."""
        size = self.size
        reach = bytearray(size * size)
        for node, parent in enumerate(self.parents):
            row = node * size
            if parent >= 0:
                reach[row : row + size] = reach[parent * size : parent * size + size]
            reach[row + node] = True
        return np.frombuffer(reach, dtype=bool).reshape(size, size)

    def child(self, node: int, token: int) -> int | None:
        """The first child of a node with this token, None if there is none."""
        return next((child for child in self.children[node] if self.tokens[child] == token), None)

    def paths(self) -> list[tuple[int, ...]]:
        """The tokens from below the root to each node."""
        paths: list[tuple[int, ...]] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append(() if parent < 0 else (*paths[parent], token))
        return paths

    def best(self, size: int, scores: Sequence[float] | None = None) -> "DraftTree":
        """The subtree of the `size` nodes with the highest scores, ties to the earlier node.

        A node never scores above its parent, so the result is connected.

        Args:
            size: number of nodes, the root included.
            scores: per node, the scores to use in place of the tree's own.
        """
        if self.size <= size:
            return self
        scores = self.scores if scores is None else scores
        order = sorted(sorted(range(self.size), key=lambda node: -scores[node])[:size])
        new_index = {node: index for index, node in enumerate(order)}
        return replace(
            self,
            tokens=tuple(self.tokens[node] for node in order),
            parents=tuple(new_index.get(self.parents[node], -1) for node in order),
            path_logprobs=tuple(self.path_logprobs[node] for node in order),
            scores=tuple(self.scores[node] for node in order),
            draft_probs={new_index[node]: row for node, row in self.draft_probs.items() if node in new_index},
        )


class GrowthObserver(Protocol):
    """Observes the growth of one tree: which candidates become nodes, and why others do not."""

    def guided(self, logits: Tensor, guided_logits: Tensor) -> None:
        """Take the drafter's logits of a new level. Copy them to keep them: their memory may be used again.

        Args:
            logits: `[frontier, columns]` the drafter's logits.
            guided_logits: these logits as the policy sees them, changed by the verifier's `guide`.
        """
        ...

    def kept(self, frontier: Sequence[int], layer: "Layer", keep: Array) -> None:
        """Take the policy's choice on a level, before the budget cuts it.

        Args:
            frontier: the nodes that are expanded.
            layer: their candidates.
            keep: bool `[frontier, candidates]`: which of them the policy keeps.
        """
        ...

    def joined(self, tokens: Array, mask: Array) -> None:
        """Take the tokens that join the tree, in order.

        Args:
            tokens: `[frontier, candidates]` token ids of the candidates or, in a tree that is drawn, of drawn children.
            mask: bool of the same shape: which of them join.
        """
        ...

    def ended(self, nodes: Sequence[int], rule: Rule) -> None:
        """Take the nodes of the newest level that are not expanded, and the rule that says so."""
        ...


class GrowingTree:
    """The tree of one text while it grows, in lists; further attributes are as in `DraftTree`.

    Args:
        root: token id of the root.
        limit: the deepest level that the tree may have.
        state: the policy's state of the text.
        proposal: how children are chosen.
        source: which model of the drafter drafts.
        observer: observes how the tree grows; None for none.

    Attributes:
        frontier: the nodes that are expanded next.
        first: the first node of the newest level.
        above: per node of the newest level, its parent's row in the last draft pass, over the frontiers of all texts.
        row: the row of the tree's first frontier node in that pass.
    """

    def __init__(
        self,
        root: int,
        limit: int,
        state: Any = None,
        proposal: Proposal = Proposal.TOP_K,
        source: int = 0,
        observer: GrowthObserver | None = None,
    ) -> None:
        self.limit = limit
        self.state = state
        self.source = source
        self.observer = observer
        self.tokens = [root]
        self.parents = [-1]
        self.path_logprobs = [0.0]
        self.scores = [math.inf]
        self.draft_probs = dict[int, Tensor]()
        self.frontier = [0]
        self.first = 0
        self.above = list[int]()
        self.row = 0
        self._levels = 0
        self._widths = list[int]()
        self._proposal = proposal

    def add(self, tokens: list[int], parents: list[int], path_logprobs: list[float], scores: list[float]) -> None:
        """Add the children of the frontier."""
        self.tokens += tokens
        self.parents += parents
        self.path_logprobs += path_logprobs
        self.scores += scores
        self._widths.append(len(self.frontier))
        self._levels += len(tokens) > 0

    def tree(self) -> DraftTree:
        """The tree so far, in a form that cannot be changed."""
        columns = tuple(self.tokens), tuple(self.parents), tuple(self.path_logprobs), tuple(self.scores)
        details = self._proposal, {**self.draft_probs}, tuple(self._widths), self.source
        return DraftTree(*columns, self._levels, *details)


@dataclass(eq=False)
class Layer:
    """The best candidates of every frontier node of a text, sorted by probability: all that a policy sees.

    Its arrays are read-only: a policy that wrote into them could drop nodes that were drawn, which is not lossless.

    Attributes:
        logprobs: `[frontier, candidates]` draft log-probability given the frontier node.
        path_logprobs: `[frontier, candidates]` log-probability of each candidate's path from the root.
        possible: `[frontier, candidates]` mask of all candidates that are possible at all.
        depth: level the candidates would join, 1 for children of the root.
        score: the policy's `score`, which computes `scores`.
        labels: `[frontier]` the labels that the policy's `label` gave the frontier nodes, or None.
    """

    logprobs: Array
    path_logprobs: Array
    possible: Array
    depth: int
    _growing: GrowingTree
    score: Callable[["Layer"], Array]
    labels: Array | None = None
    _scores: Array | None = None

    @property
    def tree(self) -> DraftTree:
        """The tree so far, without this level."""
        return self._growing.tree()

    @property
    def state(self) -> Any:
        """The policy's state of the text; None for a policy that learns nothing."""
        return self._growing.state

    @property
    def source(self) -> int:
        """Which model of the drafter drafts, 0 unless it has several."""
        return self._growing.source

    @property
    def parent_logprobs(self) -> Array:
        """`[frontier]` path log-probability of the frontier nodes."""
        paths = self._growing.path_logprobs
        return np.array([paths[node] for node in self._growing.frontier], dtype=self.logprobs.dtype)

    @property
    def parent_scores(self) -> Array:
        """`[frontier]` the policy's scores of the frontier nodes, 0 for the root."""
        scores = self._growing.scores
        return np.array([scores[node] if node else 0.0 for node in self._growing.frontier], dtype=self.logprobs.dtype)

    @property
    def scores(self) -> Array:
        """`[frontier, candidates]` the policy's scores, for budget cuts and re-ranking; computed once."""
        if self._scores is None:
            self._scores = self.score(self)
            self._scores.setflags(write=False)
        return self._scores

    @property
    def rank(self) -> Array:
        """`[candidates]` rank of a candidate among its siblings, 0 for the most probable."""
        return np.arange(self.logprobs.shape[1])

    @property
    def confidence(self) -> Array:
        """`[frontier, 1]` probability of each frontier node's best candidate."""
        return np.exp(self.logprobs[:, :1])


class Verdict(NamedTuple):
    """The outcome of verifying a tree.

    Attributes:
        path: the accepted nodes from the root (0) down.
        bonus: the token that follows the accepted path.
    """

    path: list[int]
    bonus: int
