"""The rounds of a request in an engine as plain data: trees as they grew, were cut to a budget and verified."""

from collections import deque
from typing import NamedTuple

from torch import Tensor

from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.metrics import TextRound
from drafttree.engine.request import Request, RoundObserver
from drafttree.evaluation.trace.growth import Grown
from drafttree.evaluation.trace.rounds import TokenTexts, read_round
from drafttree.evaluation.trace.trace import TracedRound


class ServedRound(NamedTuple):
    """A round of a request.

    Attributes:
        traced: the data of the round. Its cut nodes were drafted, but exceeded the budget of the batch. Its draft
            probabilities are those that the policy saw.
        cost: the cost of the round.
        reason: why nothing was drafted for any request; None if something was.
        previous_token: the token before the root; None if there is none.
    """

    traced: TracedRound
    cost: TextRound
    reason: str | None
    previous_token: int | None


class TracingObserver(RoundObserver):
    """Records the rounds of one request; the texts of their tokens are filled in by `take`.

    Args:
        texts: the texts of tokens.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._rounds: deque[ServedRound] = deque()

    def drafted(self, request: Request, grown: DraftTree, reason: str | None) -> None:
        self._grown = grown
        self._reason = reason

    def settled(
        self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, text_round: TextRound
    ) -> None:
        traced = read_round(Grown.of_tree(self._grown, tree, verdict), request, tree, logits, verdict, text_round)
        root = len(request.tokens) - text_round.committed - 1
        self._rounds.append(ServedRound(traced, text_round, self._reason, request.tokens[root - 1] if root else None))

    def take(self) -> ServedRound | None:
        """Remove and return the oldest round; None if there is none. A thread other than the engine's may call this."""
        if not self._rounds:
            return None
        served_round = self._rounds.popleft()
        self._texts.fill(served_round.traced, served_round.previous_token)
        return served_round
