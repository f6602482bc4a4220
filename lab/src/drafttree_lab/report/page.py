"""The report of a replay: an HTML page with every table, figure and verdict, or a Markdown table of the claims."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import drafttree
from drafttree_lab.replay.costs import LAW
from drafttree_lab.replay.judge import KINDS, LEAST_PROMPTS, Judgement, Verdict, count_outcomes
from drafttree_lab.replay.paper import UNITS, Metric, Paper
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
    claims = _claims(results)
    verdicts = [verdict for _, verdict in claims]
    for kept_result in results:
        summary = kept_result.summary
        name, _, result_name = summary.id.partition("/")
        paper = papers.setdefault(name, read_paper(name))
        result = paper.results.get(result_name)
        axis = result.axis.name if result and result.axis else ""
        section = {
            "kept": kept_result,
            "grids": make_grids(summary),
            "chart": draw(summary, axis),
            "axis": axis,
            "published": result.published if result else [],
            "is_measured": any(entry.is_ours for entry in summary.entries),
        }
        sections.setdefault(name, []).append(section)
    return page.render(
        papers=papers,
        sections=sections,
        main_claims=[claim for claim in claims if claim[1].main],
        further_claims=[claim for claim in claims if not claim[1].main],
        tallies=tally(verdicts),
        kinds=KINDS,
        outcomes=OUTCOMES,
        corrected_for=_corrected_for(verdicts),
        environment=results[-1].environment,
        units=UNITS,
        law=LAW,
        version=drafttree.__version__,
    )


def _claims(results: Sequence[KeptResult]) -> list[tuple[str, Verdict]]:
    """The verdicts of all results, each with the name of its result."""
    claims: list[tuple[str, Verdict]] = []
    for kept_result in results:
        summary = kept_result.summary
        claims += product([summary.id], summary.verdicts)
    return claims


def _corrected_for(verdicts: Sequence[Verdict]) -> dict[str, list[int]]:
    """For how many claims judgements are corrected, by their kind in words."""
    numbers: dict[str, set[int]] = {basis: set() for basis in KINDS}
    for verdict in verdicts:
        for basis, judgement in verdict.judgements.items():
            if judgement.claims:
                numbers[basis].add(judgement.claims)
    return {name: sorted(numbers[basis]) for basis, name in KINDS.items()}


def claims_table(results: Sequence[KeptResult]) -> str:
    """The claims that were judged, main ones first, and below them the number of each outcome and the environment."""
    rows = sorted(_claims(results), key=lambda row: not row[1].main)
    tallies = []
    for basis, counts in tally([verdict for _, verdict in rows]).items():
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        tallies.append(f"{KINDS[basis].capitalize()}: {outcomes}.")
    environment = ", ".join(f"{name} {value}" for name, value in results[-1].environment.items())
    legend = f"{' '.join(tallies)} Numbers are ratios; for an order of methods they are Kendall's tau. {environment}."
    return "\n".join([*_table_rows(rows), "", legend, ""])


def tally(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """By kind, how many judgements have each outcome; kinds without any are left out."""
    tallies: dict[str, dict[str, int]] = {}
    for basis in KINDS:
        counts = count_outcomes(getattr(verdict, basis) for verdict in verdicts)
        if counts:
            tallies[basis] = {name: counts[name] for name in OUTCOMES if name in counts}
    return tallies


def make_grids(summary: ResultSummary) -> list[Grid]:
    """A table for every metric that was measured or published."""
    entries_by_metric: dict[Metric, list[Entry]] = {}
    for entry in summary.entries:
        if entry.is_ours or entry.published is not None:
            entries_by_metric.setdefault(entry.metric, []).append(entry)
    return [_grid(metric, entries) for metric, entries in entries_by_metric.items()]


def _grid(metric: Metric, entries: Sequence[Entry]) -> Grid:
    """The table of a metric."""
    columns: dict[str, tuple[bool, bool]] = dict.fromkeys((entry.column for entry in entries), (False, False))
    rows: dict[str, list[Entry | None]] = {entry.method: [None] * len(columns) for entry in entries}
    models: dict[str, None] = {}
    for entry in entries:
        measured, published = columns[entry.column]
        columns[entry.column] = (measured or entry.is_ours, published or entry.published is not None)
        rows[entry.method][list(columns).index(entry.column)] = entry
        if entry.model and entry.published is not None:
            models[entry.model] = None
    return Grid(
        UNITS[metric],
        list(models),
        columns,
        rows,
        by_law=any(entry.by_law for entry in entries),
        decimals=decimals([entry.published for entry in entries if entry.published]),
    )


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
    all_judgements = [verdict.judgements for _, verdict in rows]
    bases = _bases(all_judgements, lambda judgement: judgement.p is not None) or _bases(all_judgements, _is_judged)
    yield _table_row(["result", "claim", *(KINDS[basis] for basis in bases), "why", "prompts"])
    yield f"|{' --- |' * (4 + len(bases))}"
    for result, verdict in rows:
        judgements = {basis: verdict.judgements[basis] for basis in bases if basis in verdict.judgements}
        if any(map(_is_judged, judgements.values())):
            outcomes = [_outcome(judgements[basis]) if basis in judgements else "" for basis in bases]
            prompts = " / ".join(map(str, _prompts(verdict)))
            yield _table_row([result, verdict.text, *outcomes, _reason(judgements), prompts])


def _bases(all_judgements: Sequence[Mapping[str, Judgement]], does_count: Callable[[Judgement], bool]) -> list[str]:
    """The kinds of judgement of which one counts, in their order."""
    bases = set[str]()
    for judgements in all_judgements:
        bases.update(basis for basis, judgement in judgements.items() if does_count(judgement))
    return [basis for basis in KINDS if basis in bases]


def _table_row(cells: Sequence[str]) -> str:
    escaped_cells = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped_cells)} |"


def _reason(judgements: Mapping[str, Judgement]) -> str:
    """The reason of the first kind of judgement in full; of the others the term, where they name another."""
    reasons: list[str] = []
    terms = set[str]()
    for basis, judgement in judgements.items():
        if reason := _why(judgement):
            term = reason.partition(" (")[0]
            if not reasons:
                reasons.append(reason)
            elif term not in terms:
                reasons.append(f"{KINDS[basis]} {term}")
            terms.add(term)
    return "; ".join(reasons)


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
