"""From a round that was seen to plain data."""

from typing import NamedTuple

from torch import Tensor

from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request
from drafttree.evaluation.trace.growth import Grown, Node
from drafttree.evaluation.trace.token_texts import TokenTexts
from drafttree.evaluation.trace.trace import Outcome, TracedNode, TracedRound


class SeenRound(NamedTuple):
    """A round whose tokens are not text yet.

    Attributes:
        grown: its tree; the verified nodes come first in the data, then those that were cut.
        path: the accepted nodes of the verified tree.
        before: the token before its root, None for the first of a text.
        target: the target's probability of a token behind a verified node.
        widths: as for `TracedRound`.
        cost: what the round cost.
    """

    grown: Grown
    path: list[int]
    before: int | None
    target: dict[tuple[int, int], float]
    widths: tuple[int, ...]
    cost: Round

    @classmethod
    def of(
        cls, grown: Grown, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, cost: Round
    ) -> "SeenRound":
        """A round with a tree as it grew; the rest is as `RoundObserver.settled` takes it."""
        rows = {place: row for row, place in enumerate(grown.places)}
        shown = [*(grown.nodes[place] for place in [*grown.places, *grown.cut]), grown.bonus]
        wanted = [(rows[node.parent], node.token) for node in shown if node.parent in rows]
        scored = sorted({row for row, _ in wanted})
        chances = request.verifier.sampling.process(logits[scored]).softmax(-1)
        found = chances[[scored.index(row) for row, _ in wanted], [token for _, token in wanted]].tolist()
        target = dict(zip(wanted, found, strict=True))
        root = len(request.tokens) - cost.committed - 1
        return cls(grown, verdict.path, request.tokens[root - 1] if root else None, target, tree.widths, cost)

    def traced(self, texts: TokenTexts) -> TracedRound:
        """The data of the round."""
        grown, size = self.grown, len(self.grown.places)
        order = [*grown.places, *grown.cut]
        numbers = {place: number for number, place in enumerate(order)}
        path = {*self.path}

        def data(node: Node, outcome: Outcome) -> TracedNode:
            parent = numbers.get(node.parent, -1)
            before = self.before if parent < 0 else grown.nodes[node.parent].token
            return TracedNode(
                node.token,
                texts.piece(before, node.token),
                parent,
                node.depth,
                node.rank,
                node.draft,
                node.seen,
                self.target.get((parent, node.token)),
                outcome,
                node.rule,
            )

        def outcome(number: int, node: Node) -> Outcome:
            if number >= size:
                return Outcome.CUT
            if number in path:
                return Outcome.ACCEPTED if number else Outcome.ROOT
            return Outcome.REJECTED if numbers[node.parent] in path else Outcome.UNREACHED

        shown = enumerate(grown.nodes[place] for place in order)
        return TracedRound(
            nodes=[data(node, outcome(number, node)) for number, node in shown],
            size=size,
            path=[*self.path],
            bonus=data(grown.bonus, Outcome.BONUS),
            committed=self.cost.committed,
            accepted=self.cost.accepted,
            cut={rule.value: count for rule, count in grown.counts.items()},
            widths=[*self.widths],
            seconds=phases(self.cost),
        )


def phases(cost: Round) -> dict[str, float]:
    """The time of a round by phase; on a device, passes overlap with the rest."""
    seconds = {
        "draft": cost.draft_seconds,
        "growth": max(cost.growth_seconds, 0.0),
        "masks": cost.mask_seconds,
        "target": cost.target_seconds,
        "verify": cost.verify_seconds,
        "commit": cost.commit_seconds,
        "text": cost.text_seconds,
    }
    return seconds | {"other": max(cost.seconds - sum(seconds.values()), 0.0)}
