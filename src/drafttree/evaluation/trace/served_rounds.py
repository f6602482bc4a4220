"""The rounds of a request in an engine as plain data: its trees as they grew, were cut to the budget and judged."""

from collections import deque
from typing import NamedTuple

from torch import Tensor

from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request, RoundObserver
from drafttree.evaluation.trace.growth import Grown
from drafttree.evaluation.trace.rounds import SeenRound
from drafttree.evaluation.trace.token_texts import TokenTexts
from drafttree.evaluation.trace.trace import TracedRound


class ServedRound(NamedTuple):
    """A round of a request.

    Attributes:
        traced: its tree; behind it the nodes that were drafted and cut to the budget of the batch. The drafter's
            probabilities are as the policy saw them.
        cost: the cost of the round.
        reason: why nothing was drafted for any request, None where something was.
    """

    traced: TracedRound
    cost: Round
    reason: str | None


class TracingObserver(RoundObserver):
    """Sees the rounds of one request, and makes plain data of them where they are taken.

    Args:
        texts: turns tokens into text.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._seen: deque[tuple[SeenRound, str | None]] = deque()

    def drafted(self, request: Request, grown: DraftTree, reason: str | None) -> None:
        self._grown, self._reason = grown, reason

    def settled(self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round) -> None:
        grown = Grown.of_tree(self._grown, tree, verdict)
        self._seen.append((SeenRound.of(grown, request, tree, logits, verdict, turn), self._reason))

    def take(self) -> ServedRound | None:
        """The oldest round that was not taken yet; None if there is none. For another thread than the engine's."""
        if not self._seen:
            return None
        seen, reason = self._seen.popleft()
        return ServedRound(seen.traced(self._texts), seen.cost, reason)
