"""The draft tree of one text while it grows."""

import math

from torch import Tensor

from drafttree.core.tree import DraftTree, Proposal


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
        widths: of the frontiers so far.
        probs: by node, the distribution its children were drawn from.
        first: the first node of the newest level.
        frontier: the nodes that are expanded next.
        levels: so far.
    """

    def __init__(self, root: int, limit: int) -> None:
        self.limit = limit
        self.tokens, self.parents, self.path_logprobs, self.scores = [root], [-1], [0.0], [math.inf]
        self.widths: list[int] = []
        self.probs: dict[int, Tensor] = {}
        self.first, self.frontier, self.levels = 0, [0], 0

    @property
    def size(self) -> int:
        """Nodes so far."""
        return len(self.tokens)

    def add(self, tokens: list[int], parents: list[int], path_logprobs: list[float], scores: list[float]) -> None:
        """Add a level."""
        self.first = len(self.tokens)
        self.tokens += tokens
        self.parents += parents
        self.path_logprobs += path_logprobs
        self.scores += scores
        self.levels += len(tokens) > 0

    def finish(self, proposal: Proposal, source: int) -> DraftTree:
        """The tree."""
        columns = self.tokens, self.parents, self.path_logprobs, self.scores
        return DraftTree(*columns, self.levels, proposal, self.probs, tuple(self.widths), source)
