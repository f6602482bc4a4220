"""Who looks at the rounds of a request while its text is written."""

from typing import Protocol

from torch import Tensor

from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.metrics import Round


class RoundObserver(Protocol):
    """Sees every round of a request, on the thread that owns the model; all texts wait while it looks."""

    def drafted(self, grown: DraftTree, reason: str | None) -> None:
        """Take the tree of a round that begins.

        Args:
            grown: as the policy left it; the budget of the batch may cut it before it is verified.
            reason: why nothing was drafted for any request, None where something was.
        """
        ...

    def settled(self, tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round) -> None:
        """Take the end of a round, before its chunk is given out.

        Args:
            tree: that was verified.
            logits: `[1, nodes, vocab]` of the target, constraints included; the next pass may use their memory again.
            verdict: of the verifier.
            turn: the cost of the round.
        """
        ...
