"""Claims as rows of a table: both judgements of each beside each other, with their intervals drawn."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from drafttree_lab.replay.verdict import LEAST_PROMPTS, Judgement, Verdict, count_outcomes
from drafttree_lab.report.interval_strip import Strip, make_strip

KINDS: Mapping[str, str] = {"by_counts": "by the paper's costs", "by_time": "on this machine"}
"""The judgements of a verdict in words."""
OUTCOMES: Mapping[str, str] = {
    "reproduced": "measured as the paper says",
    "contradicted": "measured the other way round",
    "undecided": "the interval holds both",
    "left open": "reproduced at one value of a number that the paper leaves open, contradicted at another",
    "too few": f"fewer than {LEAST_PROMPTS} prompts decide nothing",
    "not comparable": "it can be run, but would say nothing about the claim",
    "not run": "the reason stands beside it",
}
"""What each outcome means, in the order in which they are counted."""
NOT_JUDGED = ("not comparable", "not run")


@dataclass(frozen=True)
class ClaimCell:
    """A judgement in its column.

    Attributes:
        judgement: the judgement.
        strip: its interval on a scale; None without one.
    """

    judgement: Judgement
    strip: Strip | None


@dataclass(frozen=True)
class ClaimRow:
    """A verdict in a table.

    Attributes:
        result: the result whose claim it is.
        verdict: the verdict on it.
        cells: by kind, its judgement; None where there is none.
    """

    result: str
    verdict: Verdict
    cells: Mapping[str, ClaimCell | None]

    @property
    def prompts(self) -> list[int]:
        """Prompts of its judgements, one number where they rest on equally many."""
        found = [each.judgement.prompts for each in self.cells.values() if each and each.judgement.prompts]
        return list(dict.fromkeys(found))

    @property
    def is_judged(self) -> bool:
        """Whether any outcome rests on a measurement."""
        return any(each.judgement.outcome not in NOT_JUDGED for each in self.cells.values() if each)


def make_rows(result: str, verdicts: Sequence[Verdict], orders: Iterable[str] = ()) -> list[ClaimRow]:
    """Rows of the verdicts of a result.

    Args:
        result: the id of the result.
        verdicts: verdicts on its claims.
        orders: ids of claims that are judged by Kendall's tau, not by a ratio.
    """
    return [ClaimRow(result, each, _cells(each, is_ratio=each.id not in orders)) for each in verdicts]


def tally(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """By kind, how many judgements have each outcome; kinds without any are left out."""
    found = {kind: count_outcomes(getattr(each, kind) for each in verdicts) for kind in KINDS}
    return {kind: {name: own[name] for name in OUTCOMES if name in own} for kind, own in found.items() if own}


def _cells(verdict: Verdict, *, is_ratio: bool) -> dict[str, ClaimCell | None]:
    judgements: dict[str, Judgement | None] = {kind: getattr(verdict, kind) for kind in KINDS}
    return {
        kind: ClaimCell(own, make_strip(own, is_ratio=is_ratio)) if own else None for kind, own in judgements.items()
    }
