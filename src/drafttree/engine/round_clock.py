"""The one clock of a round: metrics and `bench overhead` read what the loop has timed."""

import operator
from collections.abc import Sequence
from itertools import pairwise

import torch

from drafttree.core.timing import PassTimer
from drafttree.core.tree import DraftTree
from drafttree.drafters.base import DraftSession
from drafttree.engine.metrics import Round

PARTS = ("propose", "masks", "target", "verify", "commit", "text")


class RoundClock:
    """Times the parts of one request's rounds: each is a `with` block of its own timer.

    Args:
        device: where the target runs.

    Attributes:
        propose: drafting the tree, draft passes included.
        masks: ancestor masks and positions for the target.
        target: the target pass.
        verify: the verifier, and constraints on the text.
        commit: keeping rows of the KV cache, and telling drafter and policy.
        text: turning committed tokens into text.
    """

    def __init__(self, device: torch.device) -> None:
        self.propose, self.masks, self.target = PassTimer(device), PassTimer(device), PassTimer(device)
        self.verify, self.commit, self.text = PassTimer(device), PassTimer(device), PassTimer(device)
        self._read: list[float] = [0.0] * (len(PARTS) + 2)

    def round(
        self, committed: int, path: Sequence[int], tree: DraftTree, draft: DraftSession | None, seconds: float
    ) -> Round:
        """The cost of the round that has just ended.

        Args:
            committed: tokens that became part of the text.
            path: the accepted nodes, the root's first; the text may end before its last.
            tree: that was verified.
            draft: the drafter's session, which times its own passes.
            seconds: of the whole round.
        """
        own = [getattr(self, part).seconds for part in PARTS]
        total = [*own, draft.seconds, draft.passes] if draft else [*own, 0.0, 0]
        propose, masks, target, verify, commit, text, drafting, passes = map(operator.sub, total, self._read)
        self._read = total
        accepted = min(committed, len(path) - 1)
        return Round(
            committed=committed,
            accepted=accepted,
            nodes=tree.size,
            levels=tree.levels,
            draft_passes=int(passes),
            draft_seconds=drafting,
            growth_seconds=propose - drafting,
            mask_seconds=masks,
            target_seconds=target,
            verify_seconds=verify,
            commit_seconds=commit,
            text_seconds=text,
            seconds=seconds,
            widths=tree.widths,
            source=tree.source,
            ranks=tuple(1 + tree.children[node].index(below) for node, below in pairwise(path[: accepted + 1])),
        )
