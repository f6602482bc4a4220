"""The verdicts of a replay as a Markdown table."""

from collections.abc import Iterable, Iterator, Sequence

from drafttree_lab.replay.results_folder import KeptResult
from drafttree_lab.replay.verdict import Verdict

NEEDS_NO_ROW = ("not comparable", "not run")
"""Outcomes that are told by their number alone."""


def claims_table(results: Sequence[KeptResult]) -> str:
    """The claims that were judged, main ones first, and below them how many were not and the environment."""
    verdicts = [(each.summary.id, verdict) for each in results for verdict in each.summary.verdicts]
    judged = [pair for pair in verdicts if pair[1].outcome not in NEEDS_NO_ROW]
    rows = sorted(judged, key=lambda pair: not pair[1].main)
    others = [sum(verdict.outcome == outcome for _, verdict in verdicts) for outcome in NEEDS_NO_ROW]
    told = ", ".join(f"{count} {outcome}" for outcome, count in zip(NEEDS_NO_ROW, others, strict=True))
    environment = ", ".join(f"{name} {value}" for name, value in results[-1].environment.items())
    return "\n".join([*_table(rows), "", f"Besides: {told}. {environment}.", ""])


def _table(rows: Iterable[tuple[str, Verdict]]) -> Iterator[str]:
    yield "| result | claim | verdict | measured | prompts |"
    yield "| --- | --- | --- | --- | --- |"
    for result, verdict in rows:
        cells = result, verdict.text, verdict.outcome, verdict.said, str(verdict.prompts)
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
