"""Rounds as compact rows, which draft_tree.js reads by their places."""

from collections.abc import Sequence
from typing import Any

from drafttree.evaluation.trace import PHASES, Outcome, Rule, TracedNode, TracedRound

DIGITS = 3
"""Significant digits of probabilities and times in the page."""
OUTCOMES, RULES = tuple(Outcome), tuple(Rule)
WORDS: dict[str, Sequence[str]] = {"phases": PHASES, "outcomes": OUTCOMES, "rules": RULES}
"""What the numbers in the rows stand for."""


def pack_round(turn: TracedRound, strings: dict[str, int]) -> dict[str, Any]:
    """A round as a short row; texts go into `strings`, each with its place."""
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
    """Text, id, parent, rank, outcome, rule, then the probabilities: draft, target, and seen where it is another."""
    chances = [node.draft, node.target]
    if node.seen is not None and abs(node.seen - (node.draft or 0.0)) > 10.0**-DIGITS:
        chances.append(node.seen)
    text = strings.setdefault(node.text, len(strings))
    indices = [OUTCOMES.index(node.outcome), RULES.index(node.rule)]
    return [text, node.token, node.parent, node.rank, *indices, *_short(chances)]


def _short(numbers: Sequence[float | None]) -> list[float | None]:
    return [None if number is None else float(f"{number:.{DIGITS}g}") for number in numbers]
