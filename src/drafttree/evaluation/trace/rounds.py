"""Makes the data of a round from its tree as it grew and was verified."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.metrics import TextRound
from drafttree.engine.request import Request
from drafttree.evaluation.trace.growth import Grown
from drafttree.evaluation.trace.trace import Outcome, TracedNode, TracedRound
from drafttree.text.detokenizer import Tokenizer


def read_round(
    grown: Grown, request: Request, tree: DraftTree, logits: Tensor, verdict: Verdict, text_round: TextRound
) -> TracedRound:
    """The data of a round, without the texts of its tokens.

    The nodes of `grown` are changed. All other arguments are those of `RoundObserver.settled`.
    """
    nodes, bonus = _renumbered(grown)
    _set_outcomes(nodes[: tree.size], verdict.path)
    scored_nodes = [node for node in (*nodes, bonus) if 0 <= node.parent < tree.size]
    _set_target_probabilities(scored_nodes, logits, request.task.verifier.sampling)
    return TracedRound(
        nodes=nodes,
        size=tree.size,
        path=verdict.path,
        bonus=bonus,
        committed=text_round.committed,
        accepted=text_round.accepted,
        cut={rule.value: count for rule, count in grown.counts.items()},
        widths=[*tree.widths],
        seconds=phases(text_round),
    )


def _renumbered(grown: Grown) -> tuple[list[TracedNode], TracedNode]:
    """The nodes of the verified tree and, after them, those that were cut; also the bonus token.

    Parents become indices into these nodes.
    """
    order = [*grown.places, *grown.cut]
    numbers = {index: number for number, index in enumerate(order)}
    nodes = [grown.nodes[index] for index in order]
    bonus = replace(grown.bonus, outcome=Outcome.BONUS)
    for node in (*nodes, bonus):
        node.parent = numbers.get(node.parent, -1)
    return nodes, bonus


def _set_outcomes(nodes: Sequence[TracedNode], path: Sequence[int]) -> None:
    """Set what became of the nodes of a verified tree, given its accepted path."""
    for number, node in enumerate(nodes):
        rejection = Outcome.REJECTED if node.parent in path else Outcome.UNREACHED
        node.outcome = Outcome.ACCEPTED if number in path else rejection
    nodes[0].outcome = Outcome.ROOT


def _set_target_probabilities(nodes: Sequence[TracedNode], logits: Tensor, sampling: Sampling) -> None:
    """Set the target's probability of nodes whose parents have a row in its logits `[tree nodes, vocab]`."""
    parents = sorted({node.parent for node in nodes})
    probabilities = sampling.process(logits[parents]).softmax(-1)
    rows = [parents.index(node.parent) for node in nodes]
    node_probabilities = probabilities[rows, [node.token for node in nodes]]
    for node, probability in zip(nodes, node_probabilities.tolist(), strict=True):
        node.target = probability


def phases(cost: TextRound) -> dict[str, float]:
    """Seconds of a round by phase, see `PHASES`; on a GPU, passes overlap with the other phases."""
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
    """The texts of tokens, which depend on the token before; each pair of tokens is decoded once.

    Args:
        tokenizer: decodes the tokens; None to show token ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[tuple[int | None, int], str] = {}

    def piece(self, previous_token: int | None, token: int) -> str:
        """The text of a token after another one, or at the beginning if that is None; special tokens by name.

        Some tokenizers drop the space at the beginning of a text, so a token is decoded together with the one before.
        """
        if (previous_token, token) not in self._pieces:
            self._pieces[previous_token, token] = self._piece(previous_token, token)
        return self._pieces[previous_token, token]

    def fill(self, traced_round: TracedRound, previous_token: int | None) -> TracedRound:
        """Set the texts of a round's tokens and return the round.

        Args:
            traced_round: the round.
            previous_token: the token before its root; None if there is none.
        """
        for node in (*traced_round.nodes, traced_round.bonus):
            parent_token = previous_token if node.parent < 0 else traced_round.nodes[node.parent].token
            node.text = self.piece(parent_token, node.token)
        return traced_round

    def _piece(self, previous_token: int | None, token: int) -> str:
        if self._tokenizer is None:
            return f" {token}"
        if previous_token is None:
            return self._decode(token)
        head = self._decode(previous_token)
        joint_text = self._decode(previous_token, token)
        return joint_text[len(head) :] if joint_text.startswith(head) else self._decode(token)

    def _decode(self, *tokens: int) -> str:
        assert self._tokenizer is not None
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)
