"""The draft tree of one text while it grows."""

import math

from torch import Tensor

from drafttree.core.tree import DraftTree, Proposal
from drafttree.drafters.session import Frontier


class GrowingTree:
    """The tree of one text while it grows, in lists: it has some sixty nodes.

    Args:
        root: token id.
        limit: no node is deeper.

    Attributes:
        limit: as given.
        tokens: as in `DraftTree`.
        parents: as in `DraftTree`.
        path_logprobs: as in `DraftTree`.
        scores: as in `DraftTree`.
        widths: widths of the frontiers so far.
        probs: by node, the distribution its children were drawn from.
        first: the first node of the newest level.
        frontier: the nodes that are expanded next.
        levels: levels so far.
    """

    def __init__(self, root: int, limit: int) -> None:
        self.limit = limit
        self.tokens, self.parents, self.path_logprobs, self.scores = [root], [-1], [0.0], [math.inf]
        self.widths: list[int] = []
        self.probs: dict[int, Tensor] = {}
        self.first, self.frontier, self.levels = 0, [0], 0
        self._above: list[int] = []

    @property
    def size(self) -> int:
        """Nodes so far."""
        return len(self.tokens)

    def add(self, tokens: list[int], above: list[int], path_logprobs: list[float], scores: list[float]) -> None:
        """Add a level; `above` are the places of the parents in the frontier."""
        self.first = len(self.tokens)
        self._above = above
        self.tokens += tokens
        self.parents += [self.frontier[place] for place in above]
        self.path_logprobs += path_logprobs
        self.scores += scores
        self.levels += len(tokens) > 0

    def expanding(self) -> Frontier:
        """The frontier as a drafter is told of it."""
        first = self.first
        return Frontier(
            [self.tokens[node] for node in self.frontier], [self._above[node - first] for node in self.frontier]
        )

    def finish(self, proposal: Proposal, source: int) -> DraftTree:
        """The tree."""
        columns = tuple(self.tokens), tuple(self.parents), tuple(self.path_logprobs), tuple(self.scores)
        return DraftTree(*columns, self.levels, proposal, self.probs, tuple(self.widths), source)
