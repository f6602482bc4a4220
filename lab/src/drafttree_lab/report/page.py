"""The report of a replay: an HTML page with every table, figure and verdict, or a Markdown table of the claims."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import drafttree
from drafttree_lab.replay.costs import LAW
from drafttree_lab.replay.judge import KINDS, LEAST_PROMPTS, Judgement, Verdict, count_outcomes
from drafttree_lab.replay.paper import UNITS, Paper
from drafttree_lab.replay.paper_files import read_paper
from drafttree_lab.replay.results import Entry, KeptResult, ResultSummary
from drafttree_lab.report.notation import decimals, template, write_text

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
WIDEST = 1.5
"""The ratio at the right end of a strip; its inverse is at the left."""


@dataclass(frozen=True)
class Grid:
    """One metric of a result as a table.

    Attributes:
        metric: the metric in words.
        models: models of the published numbers.
        columns: by name, whether we have a number in the column, and whether the paper has one.
        rows: per method an entry for every column, None where there is none.
        by_law: whether speed-ups by the law are in it.
        decimals: decimals of the published numbers.
    """

    metric: str
    models: list[str]
    columns: dict[str, tuple[bool, bool]]
    rows: dict[str, list[Entry | None]]
    by_law: bool
    decimals: int


def write_report(results: Sequence[KeptResult], path: Path) -> None:
    """Write the page, or the table of its claims alone to a file that ends in `.md`.

    Raises:
        InputError: the file cannot be written.
    """
    write_text(claims_table(results) if path.suffix == ".md" else render(results), path)


def render(results: Sequence[KeptResult]) -> str:
    """The page as text.

    Raises:
        ConfigError: a paper is unknown.
    """
    page = template("report.html", strip=place_strip, prompts=_prompts, tally=tally)
    from drafttree_lab.report.chart import draw  # late: matplotlib takes a second to import

    papers: dict[str, Paper] = {}
    sections: dict[str, list[dict[str, Any]]] = {}
    for kept_result in results:
        name, _, result_name = kept_result.summary.id.partition("/")
        paper = papers.setdefault(name, read_paper(name))
        result = paper.results.get(result_name)
        axis = result.axis.name if result and result.axis else ""
        section = {
            "kept": kept_result,
            "grids": make_grids(kept_result.summary),
            "chart": draw(kept_result.summary, axis),
            "axis": axis,
        }
        section["published"] = result.published if result else []
        section["is_measured"] = any(entry.is_ours for entry in kept_result.summary.entries)
        sections.setdefault(name, []).append(section)
    claims = [(kept_result.summary.id, verdict) for kept_result in results for verdict in kept_result.summary.verdicts]
    return page.render(
        papers=papers,
        sections=sections,
        main_claims=[claim for claim in claims if claim[1].main],
        further_claims=[claim for claim in claims if not claim[1].main],
        tallies=tally([verdict for _, verdict in claims]),
        kinds=KINDS,
        outcomes=OUTCOMES,
        corrected_for={
            name: sorted(
                {
                    judgement.claims
                    for _, verdict in claims
                    if (judgement := getattr(verdict, basis)) and judgement.claims
                }
            )
            for basis, name in KINDS.items()
        },
        environment=results[-1].environment,
        units=UNITS,
        law=LAW,
        version=drafttree.__version__,
    )


def claims_table(results: Sequence[KeptResult]) -> str:
    """The claims that were judged, main ones first, and below them the number of each outcome and the environment."""
    rows = [(kept_result.summary.id, verdict) for kept_result in results for verdict in kept_result.summary.verdicts]
    tallies = [
        f"{KINDS[basis].capitalize()}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}."
        for basis, counts in tally([verdict for _, verdict in rows]).items()
    ]
    environment = ", ".join(f"{name} {value}" for name, value in results[-1].environment.items())
    legend = f"{' '.join(tallies)} Numbers are ratios; for an order of methods they are Kendall's tau. {environment}."
    return "\n".join([*_table_rows(sorted(rows, key=lambda row: not row[1].main)), "", legend, ""])


def tally(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """By kind, how many judgements have each outcome; kinds without any are left out."""
    counts_by_basis = {basis: count_outcomes(getattr(verdict, basis) for verdict in verdicts) for basis in KINDS}
    return {
        basis: {name: counts[name] for name in OUTCOMES if name in counts}
        for basis, counts in counts_by_basis.items()
        if counts
    }


def make_grids(summary: ResultSummary) -> list[Grid]:
    """A table for every metric that was measured or published."""
    entries = [entry for entry in summary.entries if entry.is_ours or entry.published is not None]
    grids = []
    for metric in dict.fromkeys(entry.metric for entry in entries):
        metric_entries = [entry for entry in entries if entry.metric == metric]
        columns: dict[str, tuple[bool, bool]] = dict.fromkeys(
            (entry.column for entry in metric_entries), (False, False)
        )
        rows: dict[str, list[Entry | None]] = {entry.method: [None] * len(columns) for entry in metric_entries}
        for entry in metric_entries:
            measured, published = columns[entry.column]
            columns[entry.column] = (measured or entry.is_ours, published or entry.published is not None)
            rows[entry.method][list(columns).index(entry.column)] = entry
        models = dict.fromkeys(entry.model for entry in metric_entries if entry.model and entry.published is not None)
        decimal_places = decimals([entry.published for entry in metric_entries if entry.published])
        grids.append(
            Grid(
                UNITS[metric],
                list(models),
                columns,
                rows,
                any(entry.by_law for entry in metric_entries),
                decimal_places,
            )
        )
    return grids


def place_strip(judgement: Judgement) -> tuple[float, float, float] | None:
    """Where the low end, the estimate and the high end lie on a scale from 0 to 100; None without an interval.

    The middle says that there is no difference, as in the forest plots of a meta-analysis. Ratios lie on a logarithmic
    scale; what lies beyond the scale is put at its end.
    """
    ends = []
    for value in (judgement.low, judgement.estimate, judgement.high):
        if value is None or not math.isfinite(value):
            return None
        if not judgement.is_order:
            value = math.log(value, WIDEST) if value > 0 else -1.0
        ends.append(round(50 + 50 * min(max(value, -1.0), 1.0), 2))
    low, middle, high = ends
    return low, middle, high


def _prompts(verdict: Verdict) -> list[int]:
    """Prompts of its judgements, one number where they rest on equally many."""
    return list(dict.fromkeys(judgement.prompts for judgement in verdict.judgements.values() if judgement.prompts))


def _table_rows(rows: Sequence[tuple[str, Verdict]]) -> Iterator[str]:
    """The rows of claims that were judged, in the kinds of judgement that decide anything, or all if none does."""
    basis_judgements = [basis_judgement for _, verdict in rows for basis_judgement in verdict.judgements.items()]
    deciding_bases = {basis for basis, judgement in basis_judgements if judgement.p is not None} or {
        basis for basis, judgement in basis_judgements if _is_judged(judgement)
    }
    bases = [basis for basis in KINDS if basis in deciding_bases]
    yield f"| {' | '.join(['result', 'claim', *(KINDS[basis] for basis in bases), 'why', 'prompts'])} |"
    yield f"|{' --- |' * (4 + len(bases))}"
    for result, verdict in rows:
        judgements = {basis: verdict.judgements.get(basis) for basis in bases}
        if not any(judgement and _is_judged(judgement) for judgement in judgements.values()):
            continue
        # the reason of the first kind in full; of the others the term, where they name another
        reasons = {
            basis: reason for basis, judgement in judgements.items() if judgement and (reason := _why(judgement))
        }
        first_basis = next(iter(reasons), None)
        terms = {reason.partition(" (")[0]: basis for basis, reason in reversed(reasons.items())}
        other_terms = [f"{KINDS[basis]} {term}" for term, basis in reversed(terms.items()) if basis != first_basis]
        reason = "; ".join([reasons[first_basis], *other_terms]) if first_basis else ""
        outcomes = [_outcome(judgement) if judgement else "" for judgement in judgements.values()]
        cells = result, verdict.text, *outcomes, reason, " / ".join(map(str, _prompts(verdict)))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _is_judged(judgement: Judgement) -> bool:
    return judgement.outcome not in ("not comparable", "not run")


def _why(judgement: Judgement) -> str:
    """Its reason, or what it says beside the number."""
    if judgement.repeats or judgement.estimate is None:
        return ""
    return judgement.reason or judgement.said.partition("; ")[2]


def _outcome(judgement: Judgement) -> str:
    number = "" if judgement.estimate is None else f" {judgement.estimate:.2f}"
    interval = (
        "" if judgement.low is None or judgement.high is None else f" [{judgement.low:.2f}, {judgement.high:.2f}]"
    )
    repeat_note = f", as {judgement.repeats}, {judgement.repeated}" if judgement.repeats else ""
    return f"{judgement.outcome}{number}{interval}{repeat_note}"
