"""The one clock of a round: metrics and `bench overhead` read what the loop has timed."""

import torch

from drafttree.core.timing import PassTimer
from drafttree.core.tree import DraftTree
from drafttree.drafters.base import DraftSession
from drafttree.engine.metrics import Round

PARTS = ("propose", "masks", "target", "verify", "commit", "text")


class RoundClock:
    """Times the parts of one request's rounds, with a `PassTimer` each.

    Args:
        device: where the target runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._timers = {part: PassTimer(device) for part in PARTS}
        self._read: dict[str, float] = dict.fromkeys((*PARTS, "draft", "passes"), 0.0)

    def part(self, name: str) -> PassTimer:
        """The timer of a part, to run it in a `with` block."""
        return self._timers[name]

    def round(
        self, committed: int, accepted: int, tree: DraftTree, draft: DraftSession | None, seconds: float
    ) -> Round:
        """What the round that has just ended cost.

        Args:
            committed: tokens that became part of the text.
            accepted: how many of them were drafted.
            tree: that was verified.
            draft: the drafter's session, which times its own passes.
            seconds: of the whole round.
        """
        total: dict[str, float] = {part: timer.seconds for part, timer in self._timers.items()}
        total |= {"draft": draft.seconds, "passes": draft.passes} if draft else {"draft": 0.0, "passes": 0}
        spent = {part: after - self._read[part] for part, after in total.items()}
        self._read = total
        return Round(
            committed=committed,
            accepted=accepted,
            nodes=tree.branches[0].size,
            levels=tree.levels,
            draft_passes=int(spent["passes"]),
            draft_seconds=spent["draft"],
            growth_seconds=spent["propose"] - spent["draft"],
            mask_seconds=spent["masks"],
            target_seconds=spent["target"],
            verify_seconds=spent["verify"],
            commit_seconds=spent["commit"],
            text_seconds=spent["text"],
            seconds=seconds,
        )
