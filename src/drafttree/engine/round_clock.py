"""The clock of a round, which the loop tells when a part has ended."""

import time
from collections.abc import Sequence
from itertools import pairwise

from drafttree.core.tree import DraftTree
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request


class RoundClock:
    """Sums up the wall time of the parts of a round: `draft`, `masks` and `target` of all its requests, then `verify`,
    `commit` and `text` of one after the other.

    Attributes:
        began: when it was made, by `time.perf_counter`.
        seconds: seconds of the latest part of each name.
    """

    def __init__(self) -> None:
        self.began = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Note that a part ends here, which began where the one before it ended."""
        now = time.perf_counter()
        self.seconds[part], self._last = now - self._last, now

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return self._last - self.began

    def round(
        self, request: Request, tree: DraftTree, path: Sequence[int], committed: int, *, collapsed: bool
    ) -> Round:
        """The cost of a request's round that has just ended.

        Args:
            request: the request whose round it was; its drafter's session times its own passes.
            tree: the tree that was verified.
            path: the accepted nodes, the root's first; the text may end before its last.
            committed: tokens that became part of the text.
            collapsed: as in `Round`.
        """
        draft_seconds, draft_passes = request.drafting.read_costs()
        accepted, part = min(committed, len(path) - 1), self.seconds
        return Round(
            committed=committed,
            accepted=accepted,
            nodes=tree.size,
            levels=tree.levels,
            draft_passes=draft_passes,
            draft_seconds=draft_seconds,
            growth_seconds=part["draft"] - draft_seconds,
            mask_seconds=part["masks"],
            target_seconds=part["target"],
            verify_seconds=part["verify"],
            commit_seconds=part["commit"],
            text_seconds=part["text"],
            seconds=time.perf_counter() - self.began,
            widths=tree.widths,
            source=tree.source,
            ranks=tuple(1 + tree.children[node].index(below) for node, below in pairwise(path[: accepted + 1])),
            collapsed=collapsed,
        )
