"""Packs rounds into compact rows, whose elements draft_tree.js reads by position."""

from collections.abc import Sequence
from typing import Any

from drafttree.evaluation.trace import PHASES, Outcome, Rule, TracedNode, TracedRound

DIGITS = 3
"""Significant digits of probabilities and times in a page."""
OUTCOMES, RULES = tuple(Outcome), tuple(Rule)
WORDS: dict[str, Sequence[str]] = {"phases": PHASES, "outcomes": OUTCOMES, "rules": RULES}
"""The words that numbers in the rows refer to, by index."""


def pack_round(traced_round: TracedRound, strings: dict[str, int]) -> dict[str, Any]:
    """Pack a round.

    Args:
        traced_round: the round.
        strings: index of each token text, to which rows refer; new texts are added.
    """
    return {
        "n": [_packed_node(node, strings) for node in traced_round.nodes],
        "s": traced_round.size,
        "p": traced_round.path,
        "b": _packed_node(traced_round.bonus, strings),
        "c": traced_round.committed,
        "a": traced_round.accepted,
        "x": [traced_round.cut.get(rule, 0) for rule in RULES],
        "w": traced_round.widths,
        "j": traced_round.rejected,
        "t": _short([traced_round.seconds[phase] for phase in PHASES]),
    }


def _packed_node(node: TracedNode, strings: dict[str, int]) -> list[Any]:
    """A node's text, token, parent, rank, outcome and rule, then its draft, target and, if different, seen chance."""
    probabilities = [node.draft, node.target]
    if node.seen is not None and abs(node.seen - (node.draft or 0.0)) > 10.0**-DIGITS:
        probabilities.append(node.seen)
    text = strings.setdefault(node.text, len(strings))
    indices = [OUTCOMES.index(node.outcome), RULES.index(node.rule)]
    return [text, node.token, node.parent, node.rank, *indices, *_short(probabilities)]


def _short(numbers: Sequence[float | None]) -> list[float | None]:
    return [None if number is None else float(f"{number:.{DIGITS}g}") for number in numbers]
