"""Packs rounds into compact rows, whose elements draft_tree.js reads by position."""

from collections.abc import Sequence
from typing import Any

from drafttree.evaluation.trace import PHASES, Outcome, Rule, TracedNode, TracedRound

DIGITS = 3
"""Significant digits of probabilities and times in a page."""
OUTCOMES, RULES = tuple(Outcome), tuple(Rule)
WORDS: dict[str, Sequence[str]] = {"phases": PHASES, "outcomes": OUTCOMES, "rules": RULES}
"""The words that numbers in the rows stand for, by index."""


def pack_round(turn: TracedRound, strings: dict[str, int]) -> dict[str, Any]:
    """Pack a round.

    Args:
        turn: the round.
        strings: texts of tokens with their indices, which the row refers to; new texts are added.
    """
    return {
        "n": [_packed_node(node, strings) for node in turn.nodes],
        "s": turn.size,
        "p": turn.path,
        "b": _packed_node(turn.bonus, strings),
        "c": turn.committed,
        "a": turn.accepted,
        "x": [turn.cut.get(rule, 0) for rule in RULES],
        "w": turn.widths,
        "j": turn.rejected,
        "t": _short([turn.seconds[phase] for phase in PHASES]),
    }


def _packed_node(node: TracedNode, strings: dict[str, int]) -> list[Any]:
    """A node as text, id, parent, rank, outcome, rule, and probabilities: draft, target, and seen if it differs."""
    chances = [node.draft, node.target]
    if node.seen is not None and abs(node.seen - (node.draft or 0.0)) > 10.0**-DIGITS:
        chances.append(node.seen)
    text = strings.setdefault(node.text, len(strings))
    indices = [OUTCOMES.index(node.outcome), RULES.index(node.rule)]
    return [text, node.token, node.parent, node.rank, *indices, *_short(chances)]


def _short(numbers: Sequence[float | None]) -> list[float | None]:
    return [None if number is None else float(f"{number:.{DIGITS}g}") for number in numbers]
