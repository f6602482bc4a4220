"""The verdicts of a replay as a Markdown table."""

from collections.abc import Iterable, Iterator, Sequence

from drafttree_lab.replay.results_folder import KeptResult
from drafttree_lab.replay.verdict import Judgement, Verdict
from drafttree_lab.report.claim_rows import KINDS, ClaimRow, make_rows, tally


def claims_table(results: Sequence[KeptResult]) -> str:
    """The claims that were judged, main ones first, and below them the number of each outcome and the environment."""
    rows = [row for each in results for row in make_rows(each.summary.id, each.summary.verdicts) if row.is_judged]
    verdicts = [verdict for each in results for verdict in each.summary.verdicts]
    tallies = [
        f"{KINDS[kind].capitalize()}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}."
        for kind, counts in tally(verdicts).items()
    ]
    environment = ", ".join(f"{name} {value}" for name, value in results[-1].environment.items())
    told = f"{' '.join(tallies)} Numbers are ratios; for an order of methods they are Kendall's tau. {environment}."
    return "\n".join([*_table(sorted(rows, key=lambda row: not row.verdict.main)), "", told, ""])


def _table(rows: Iterable[ClaimRow]) -> Iterator[str]:
    yield f"| result | claim | {' | '.join(KINDS.values())} | why | prompts |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for row in rows:
        judged = [_judged(cell.judgement) if cell else "" for cell in row.cells.values()]
        prompts = " / ".join(map(str, row.prompts))
        cells = row.result, row.verdict.text, *judged, _why(row.verdict), prompts
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _judged(own: Judgement) -> str:
    number = "" if own.estimate is None else f" {own.estimate:.2f}"
    ends = "" if own.low is None or own.high is None else f" [{own.low:.2f}, {own.high:.2f}]"
    return f"{own.outcome}{number}{ends}"


def _why(verdict: Verdict) -> str:
    """The reason by counts, or else by time; of two that name other terms the second one's term is told."""
    reasons = [own.reason for own in verdict.judgements.values() if own.reason]
    terms = list(dict.fromkeys(reason.partition(" (")[0] for reason in reasons))
    return "; by time ".join([*reasons[:1], *terms[1:]])
