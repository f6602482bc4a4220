"""The rounds of a request in an engine as plain data: its trees as they grew, were cut to the budget and judged."""

import math
from collections import deque
from dataclasses import dataclass

from torch import Tensor

from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request, RoundObserver
from drafttree.evaluation.trace.rounds import judged, phases
from drafttree.evaluation.trace.token_texts import TokenTexts
from drafttree.evaluation.trace.trace import Outcome, Rule, TracedNode, TracedRound


@dataclass(frozen=True)
class ServedRound:
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


@dataclass(frozen=True)
class _Seen:
    """What was seen of a round.

    Attributes:
        drafted: the tree before the budget cut it.
        places: the places of the verified nodes in it.
        path: the accepted nodes among these.
        tokens: the token before the root, None for the first of a text, and the bonus token.
        target: by place, the target's probability of a node where its parent was verified; that of the
            bonus at -1.
        cost: the cost of the round.
        reason: why nothing was drafted.
    """

    drafted: DraftTree
    places: list[int]
    path: list[int]
    tokens: tuple[int | None, int]
    target: dict[int, float]
    cost: Round
    reason: str | None


class TracingObserver(RoundObserver):
    """Sees the rounds of one request, and makes plain data of them where they are taken.

    Args:
        texts: turns tokens into text.
    """

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._grown: tuple[DraftTree, str | None] | None = None
        self._seen: deque[_Seen] = deque()

    def drafted(self, request: Request, grown: DraftTree, reason: str | None) -> None:
        self._grown = grown, reason

    def settled(self, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round) -> None:
        grown, reason = self._grown or (tree, None)
        places, (path, bonus) = _places(tree, grown), verdict
        root = len(request.tokens) - turn.committed - 1
        self._seen.append(
            _Seen(
                drafted=grown,
                places=places,
                path=[places[node] for node in path],
                tokens=(request.tokens[root - 1] if root else None, bonus),
                target=_target(grown, places, logits, (path[-1], bonus), request.verifier.sampling),
                cost=turn,
                reason=reason,
            )
        )

    def take(self) -> ServedRound | None:
        """The oldest round that was not taken yet; None if there is none. For another thread than the engine's."""
        if not self._seen:
            return None
        seen = self._seen.popleft()
        return ServedRound(_Reading(seen, self._texts).round(), seen.cost, seen.reason)


def _places(kept: DraftTree, grown: DraftTree) -> list[int]:
    """The places that the nodes of a cut tree have in the grown one; siblings of a tree that may be cut differ."""
    if kept.size == grown.size:
        return list(range(kept.size))
    places = [0]
    for token, parent in zip(kept.tokens[1:], kept.parents[1:], strict=True):
        place = grown.child(places[parent], token)
        assert place is not None
        places.append(place)
    return places


def _target(
    drafted: DraftTree, places: list[int], logits: Tensor, bonus: tuple[int, int], sampling: Sampling
) -> dict[int, float]:
    """The target's probabilities of the nodes behind verified ones, and of the bonus token; see `_Seen`."""
    rows = {place: row for row, place in enumerate(places)}
    nodes = [
        (place, rows[parent], drafted.tokens[place]) for place, parent in enumerate(drafted.parents) if parent in rows
    ]
    nodes.append((-1, *bonus))
    wanted = sorted({row for _, row, _ in nodes})
    chances = sampling.process(logits[wanted]).softmax(-1)
    found = chances[[wanted.index(row) for _, row, _ in nodes], [token for *_, token in nodes]].tolist()
    return {place: chance for (place, *_), chance in zip(nodes, found, strict=True)}


class _Reading:
    """Makes plain data of a round.

    Args:
        seen: what was seen of the round.
        texts: turns tokens into text.
    """

    def __init__(self, seen: _Seen, texts: TokenTexts) -> None:
        self._seen, self._texts = seen, texts
        self._tree, kept = seen.drafted, set(seen.places)
        self._logprobs = seen.drafted.node_logprobs
        self._order = [*seen.places, *(place for place in range(self._tree.size) if place not in kept)]
        self._numbers = {place: number for number, place in enumerate(self._order)}

    def round(self) -> TracedRound:
        """The round."""
        seen, size = self._seen, len(self._seen.places)
        path = [self._numbers[place] for place in seen.path]
        cut = len(self._order) - size
        return TracedRound(
            nodes=judged([self._node(place) for place in self._order], size, path),
            size=size,
            path=path,
            bonus=self._bonus(),
            committed=seen.cost.committed,
            accepted=seen.cost.accepted,
            cut={Rule.BUDGET.value: cut} if cut else {},
            widths=list(seen.drafted.widths),
            seconds=phases(seen.cost),
        )

    def _node(self, place: int) -> TracedNode:
        token, parent, seen = self._tree.tokens[place], self._tree.parents[place], self._seen
        before = self._tree.tokens[parent] if place else seen.tokens[0]
        chance = math.exp(self._logprobs[place]) if place else None
        cut = self._numbers[place] >= len(seen.places)
        return TracedNode(
            token=token,
            text=self._texts.piece(before, token),
            parent=self._numbers[parent] if place else -1,
            depth=self._tree.depths[place],
            rank=self._tree.children[parent].index(place) if place else -1,
            draft=chance,
            seen=chance,
            target=seen.target.get(place),
            outcome=Outcome.CUT if cut else Outcome.UNREACHED if place else Outcome.ROOT,
            rule=Rule.BUDGET if cut else Rule.NONE,
        )

    def _bonus(self) -> TracedNode:
        """The bonus token behind the last accepted node; it may have been drafted there."""
        last, token = self._seen.path[-1], self._seen.tokens[1]
        twin = self._tree.child(last, token)
        drafted = None if twin is None else self._node(twin)
        return TracedNode(
            token=token,
            text=self._texts.piece(self._tree.tokens[last], token),
            parent=self._numbers[last],
            depth=self._tree.depths[last] + 1,
            rank=drafted.rank if drafted else -1,
            draft=drafted.draft if drafted else None,
            seen=drafted.seen if drafted else None,
            target=self._seen.target[-1],
            outcome=Outcome.BONUS,
            rule=drafted.rule if drafted else Rule.NONE,
        )
