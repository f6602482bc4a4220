"""From a tree as it grew and was judged to the data of a round."""

from dataclasses import replace

from torch import Tensor

from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.detokenizer import Tokenizer
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request
from drafttree.evaluation.trace.growth import Grown
from drafttree.evaluation.trace.trace import Outcome, TracedRound


def read_round(
    grown: Grown, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round
) -> TracedRound:
    """The data of a round, but for texts; the arguments behind `grown` are those of `RoundObserver.settled`."""
    order = [*grown.places, *grown.cut]
    path = {*verdict.path}
    numbers = {index: number for number, index in enumerate(order)}
    nodes = [grown.nodes[index] for index in order]
    bonus = replace(grown.bonus, outcome=Outcome.BONUS)
    for node in (*nodes, bonus):
        node.parent = numbers.get(node.parent, -1)
    for number, node in enumerate(nodes[: tree.size]):
        rejection = Outcome.REJECTED if node.parent in path else Outcome.UNREACHED
        node.outcome = Outcome.ACCEPTED if number in path else rejection
    nodes[0].outcome = Outcome.ROOT
    scored_nodes = [node for node in (*nodes, bonus) if 0 <= node.parent < tree.size]
    rows = sorted({node.parent for node in scored_nodes})
    chances = request.verifier.sampling.process(logits[rows]).softmax(-1)
    node_chances = chances[[rows.index(node.parent) for node in scored_nodes], [node.token for node in scored_nodes]]
    for node, chance in zip(scored_nodes, node_chances.tolist(), strict=True):
        node.target = chance
    return TracedRound(
        nodes=nodes,
        size=tree.size,
        path=verdict.path,
        bonus=bonus,
        committed=turn.committed,
        accepted=turn.accepted,
        cut={rule.value: count for rule, count in grown.counts.items()},
        widths=[*tree.widths],
        seconds=phases(turn),
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


class TokenTexts:
    """Texts of tokens behind a token, each decoded once.

    Args:
        tokenizer: decodes the tokens; None to show token ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[tuple[int | None, int], str] = {}

    def piece(self, before: int | None, token: int) -> str:
        """A token behind another one, special tokens by their name.

        Some tokenizers leave out the space that a text begins with, so a token is decoded behind the one before it.
        """
        if (before, token) not in self._known:
            self._known[before, token] = self._piece(before, token)
        return self._known[before, token]

    def fill(self, turn: TracedRound, before: int | None) -> TracedRound:
        """A round with its texts, given the token before its root, None for the first of a text."""
        for node in (*turn.nodes, turn.bonus):
            parent_token = before if node.parent < 0 else turn.nodes[node.parent].token
            node.text = self.piece(parent_token, node.token)
        return turn

    def _piece(self, before: int | None, token: int) -> str:
        if self._tokenizer is None:
            return f" {token}"
        if before is None:
            return self._decode(token)
        head = self._decode(before)
        joint_text = self._decode(before, token)
        return joint_text[len(head) :] if joint_text.startswith(head) else self._decode(token)

    def _decode(self, *tokens: int) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)
