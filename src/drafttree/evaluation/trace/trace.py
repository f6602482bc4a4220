"""The trace of a text as plain data: every node of every round's tree, and what became of it."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from drafttree.core.tree import Rule

PHASES = ("draft", "growth", "masks", "target", "verify", "commit", "text", "other")
"""The parts of a round's time: draft passes, growth of the tree, ancestor masks, the target pass, the verifier, the
commit of KV cache rows, the conversion of tokens into text, and the rest."""


class Outcome(StrEnum):
    """What became of a node."""

    ROOT = "root"
    """The last token of the text before the round."""
    ACCEPTED = "accepted"
    """A drafted token that the verifier accepted."""
    REJECTED = "rejected"
    """A drafted token that was not accepted, though its parent was."""
    UNREACHED = "unreached"
    """A drafted token whose parent was not accepted."""
    BONUS = "bonus"
    """The token that the target added after the accepted path."""
    CUT = "cut"
    """A candidate that did not become part of the tree."""


@dataclass
class TracedNode:
    """A node of a round's tree, a candidate that was cut, or the bonus token.

    Attributes:
        token: the token id.
        text: the token as text after its parent.
        parent: the index of the parent among the round's nodes, -1 for the root.
        depth: the distance from the root.
        rank: the index among the siblings, 0 for the drafter's most probable token or the one drawn first; -1 if the
            drafter was not asked.
        draft: the drafter's probability given the parent, with the text's temperature and truncation; None for the root
            and if the drafter was not asked.
        seen: `draft` as the policy saw it. Coupled sampling shows the policy the noise that decides the draw.
        target: the target's probability, with the text's temperature and truncation; None for the root and if the
            parent was not scored.
        outcome: what became of the node.
        rule: what cut a candidate, ended the path at a leaf, or kept the bonus token out of the tree.
    """

    token: int
    text: str = ""
    parent: int = -1
    depth: int = 0
    rank: int = -1
    draft: float | None = None
    seen: float | None = None
    target: float | None = None
    outcome: Outcome = Outcome.CUT
    rule: Rule = Rule.NONE


@dataclass(frozen=True)
class TracedRound:
    """A round of a text.

    Attributes:
        nodes: the tree in breadth-first order, then the most probable cut candidates.
        size: the number of nodes of the tree.
        path: the accepted nodes, the root first.
        bonus: the token that follows the path.
        committed: tokens that became part of the text; fewer than were accepted if the text ends.
        accepted: how many of these were drafted.
        cut: by rule, the number of candidates that it cut.
        widths: widths of the frontiers that the drafter was asked about; empty if it was not asked.
        seconds: seconds by phase, see `PHASES`.
    """

    nodes: list[TracedNode]
    size: int
    path: list[int]
    bonus: TracedNode
    committed: int
    accepted: int
    cut: dict[str, int]
    widths: list[int]
    seconds: dict[str, float]

    @property
    def rejected(self) -> list[int]:
        """The path that the drafter preferred after the accepted path: at each depth, the likeliest child."""
        rejected_path = list[int]()
        parent = self.path[-1]
        while children := [node for node in range(1, self.size) if self.nodes[node].parent == parent]:
            parent = max(children, key=lambda node: self.nodes[node].draft or 0.0)
            rejected_path.append(parent)
        return rejected_path


@dataclass(frozen=True)
class AcceptanceCell:
    """The drafted nodes of one depth and rank in all rounds.

    Attributes:
        depth: the depth of the nodes.
        rank: the rank of the nodes among their siblings.
        drafted: the number of drafted nodes.
        judged: the number of those whose parent was accepted.
        accepted: the number of accepted nodes.
    """

    depth: int
    rank: int
    drafted: int
    judged: int
    accepted: int


@dataclass(frozen=True)
class Trace:
    """The trace of a text.

    Attributes:
        prompt: the prompt before the text.
        pieces: the text in one piece per token; a piece may be empty.
        setting: names of target, drafter, policy and verifier, then precision, temperature, seed and fidelity in words.
        sampled: whether the children in the trees were drawn.
        finish_reason: why the text ended, as in `Generation`.
        rounds: the rounds in order.
        metrics: the metrics, as in `Metrics.summary`.
    """

    prompt: str
    pieces: list[str]
    setting: dict[str, str]
    sampled: bool
    finish_reason: str
    rounds: list[TracedRound]
    metrics: dict[str, Any]

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(self.pieces)

    @cached_property
    def acceptance(self) -> list[AcceptanceCell]:
        """Acceptance for every drafted depth and rank."""
        counts: dict[tuple[int, int], Counter[str]] = {}
        for traced_round in self.rounds:
            for node in traced_round.nodes[1 : traced_round.size]:
                judged = traced_round.nodes[node.parent].outcome in (Outcome.ROOT, Outcome.ACCEPTED)
                cell = counts.setdefault((node.depth, node.rank), Counter())
                cell.update(drafted=1, judged=judged, accepted=node.outcome is Outcome.ACCEPTED)
        return [
            AcceptanceCell(*depth_rank, cell["drafted"], cell["judged"], cell["accepted"])
            for depth_rank, cell in sorted(counts.items())
        ]

    @property
    def cut(self) -> dict[str, int]:
        """By rule, the number of candidates that it cut in all rounds."""
        return dict(sum((Counter(traced_round.cut) for traced_round in self.rounds), Counter()))

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase, in all rounds."""
        return {phase: sum(traced_round.seconds[phase] for traced_round in self.rounds) for phase in PHASES}

    def to_json(self) -> str:
        """The trace as one line of JSON, with text and acceptance by depth and rank."""
        document = asdict(self) | {"text": self.text, "acceptance": [asdict(cell) for cell in self.acceptance]}
        return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
