"""The one clock of a round: metrics and `bench overhead` read what the loop has timed."""

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
        self._read: dict[str, float] = dict.fromkeys((*PARTS, "draft", "passes"), 0.0)

    def round(
        self, committed: int, accepted: int, tree: DraftTree, draft: DraftSession | None, seconds: float
    ) -> Round:
        """The cost of the round that has just ended.

        Args:
            committed: tokens that became part of the text.
            accepted: how many of them were drafted.
            tree: that was verified.
            draft: the drafter's session, which times its own passes.
            seconds: of the whole round.
        """
        total: dict[str, float] = {part: getattr(self, part).seconds for part in PARTS}
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
            widths=tree.widths,
            source=tree.source,
        )
