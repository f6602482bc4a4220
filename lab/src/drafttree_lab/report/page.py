"""The report of a replay: an HTML page with every table, figure and verdict, or a Markdown table of the claims."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import drafttree
from drafttree_lab.replay.costs import LAW
from drafttree_lab.replay.judge import KINDS, LEAST_PROMPTS, Judgement, Verdict, count_outcomes
from drafttree_lab.replay.paper import UNITS, Metric, Paper, Result
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
"""What each outcome means; the report lists outcomes in this order."""
WIDEST = 1.5
"""The ratio at the right end of a strip; the left end is its inverse."""


class ResultClaim(NamedTuple):
    """A claim and the id of the result that it is about."""

    result: str
    verdict: Verdict


@dataclass(frozen=True)
class Grid:
    """One metric of a result as a table.

    Attributes:
        metric: name of the metric, with its unit.
        models: models of the published numbers.
        columns: by name, whether the column has measured numbers, and whether it has published ones.
        rows: per method an entry for every column; None for an empty cell.
        by_law: whether it has speed-ups predicted by the law.
        decimals: decimals of the published numbers.
    """

    metric: str
    models: list[str]
    columns: dict[str, tuple[bool, bool]]
    rows: dict[str, list[Entry | None]]
    by_law: bool
    decimals: int


def write_report(results: Sequence[KeptResult], path: Path) -> None:
    """Write the HTML page; to a `.md` file, write only the table of claims.

    Raises:
        InputError: the file cannot be written.
    """
    write_text(claims_table(results) if path.suffix == ".md" else render(results), path)


def render(results: Sequence[KeptResult]) -> str:
    """The HTML of the page.

    Raises:
        ConfigError: a paper is unknown.
    """
    page = template("report.html", strip=place_strip, prompts=_prompts, tally=tally)
    papers: dict[str, Paper] = {}
    sections: dict[str, list[dict[str, Any]]] = {}
    claims = _claims(results)
    verdicts = list(map(attrgetter("verdict"), claims))
    main_claims: list[ResultClaim] = []
    further_claims: list[ResultClaim] = []
    for claim in claims:
        (main_claims if claim.verdict.main else further_claims).append(claim)
    for kept_result in results:
        summary = kept_result.summary
        name, _, result_name = summary.id.partition("/")
        paper = papers.setdefault(name, read_paper(name))
        sections.setdefault(name, []).append(_section(kept_result, paper.results.get(result_name)))
    return page.render(
        papers=papers,
        sections=sections,
        main_claims=main_claims,
        further_claims=further_claims,
        tallies=tally(verdicts),
        kinds=KINDS,
        outcomes=OUTCOMES,
        corrected_for=_corrected_for(verdicts),
        environment=results[-1].environment,
        units=UNITS,
        law=LAW,
        version=drafttree.__version__,
    )


def _section(kept_result: KeptResult, result: Result | None) -> dict[str, Any]:
    """What the template shows of a result.

    Args:
        kept_result: the result.
        result: the result in the paper's file; None if the file no longer has it.
    """
    from drafttree_lab.report.chart import draw  # late: matplotlib takes a second to import

    summary = kept_result.summary
    axis = result.axis.name if result and result.axis else ""
    return {
        "kept": kept_result,
        "grids": make_grids(summary),
        "chart": draw(summary, axis),
        "axis": axis,
        "published": [block for block in result.published if block.equation is None] if result else [],
        "is_measured": any(map(attrgetter("is_ours"), summary.entries)),
    }


def _claims(results: Sequence[KeptResult]) -> list[ResultClaim]:
    claims: list[ResultClaim] = []
    for kept_result in results:
        summary = kept_result.summary
        claims += map(partial(ResultClaim, summary.id), summary.verdicts)
    return claims


def _corrected_for(verdicts: Sequence[Verdict]) -> dict[str, list[int]]:
    """By the name of each kind of judgement, the numbers of claims that its p-values are corrected for."""
    claim_counts: dict[str, list[int]] = {}
    for basis, name in KINDS.items():
        basis_counts = set[int]()
        for verdict in verdicts:
            judgement = verdict.judgements.get(basis)
            if judgement and judgement.claims:
                basis_counts.add(judgement.claims)
        claim_counts[name] = sorted(basis_counts)
    return claim_counts


def claims_table(results: Sequence[KeptResult]) -> str:
    """A Markdown table of the judged claims, main claims first, with a legend that counts the outcomes."""
    claims = sorted(_claims(results), key=attrgetter("verdict.main"), reverse=True)
    tallies = []
    for basis, counts in tally(list(map(attrgetter("verdict"), claims))).items():
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        tallies.append(f"{KINDS[basis].capitalize()}: {outcomes}.")
    environment = ", ".join(f"{name} {value}" for name, value in results[-1].environment.items())
    legend = f"{' '.join(tallies)} Numbers are ratios; for an order of methods they are Kendall's tau. {environment}."
    return "\n".join([*_table_rows(claims), "", legend, ""])


def tally(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """By kind of judgement, the number of claims with each outcome; empty kinds are left out."""
    tallies: dict[str, dict[str, int]] = {}
    for basis in KINDS:
        counts = count_outcomes(map(attrgetter(basis), verdicts))
        if counts:
            tallies[basis] = {name: counts[name] for name in OUTCOMES if name in counts}
    return tallies


def make_grids(summary: ResultSummary) -> list[Grid]:
    """A table for every metric that has measured or published numbers."""
    entries_by_metric: dict[Metric, list[Entry]] = {}
    for entry in summary.entries:
        if entry.is_ours or entry.published is not None:
            entries_by_metric.setdefault(entry.metric, []).append(entry)
    return [_grid(metric, entries) for metric, entries in entries_by_metric.items()]


def _grid(metric: Metric, entries: Sequence[Entry]) -> Grid:
    columns: dict[str, tuple[bool, bool]] = dict.fromkeys(map(attrgetter("column"), entries), (False, False))
    column_names = list(columns)
    rows: dict[str, list[Entry | None]] = {}
    models: dict[str, None] = {}
    for entry in entries:
        measured, published = columns[entry.column]
        columns[entry.column] = (measured or entry.is_ours, published or entry.published is not None)
        row = rows.setdefault(entry.method, [None] * len(columns))
        row[column_names.index(entry.column)] = entry
        if entry.model and entry.published is not None:
            models[entry.model] = None
    return Grid(
        UNITS[metric],
        list(models),
        columns,
        rows,
        by_law=any(map(attrgetter("by_law"), entries)),
        decimals=decimals([entry.published for entry in entries if entry.published]),
    )


def place_strip(judgement: Judgement) -> tuple[float, float, float] | None:
    """Positions of the low end, the estimate and the high end on a strip, 0 to 100; None without an interval.

    50 means no difference, as in the forest plots of a meta-analysis. Ratios lie on a logarithmic scale. Values outside
    the strip are drawn at its end.
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
    """The different numbers of prompts that the judgements of a claim rest on."""
    return list(dict.fromkeys(judgement.prompts for judgement in verdict.judgements.values() if judgement.prompts))


def _table_rows(claims: Sequence[ResultClaim]) -> Iterator[str]:
    """The header and a row for every judged claim.

    A kind of judgement has a column if any of its judgements has a p-value. If no kind has one, all kinds with a judged
    claim have columns.
    """
    all_judgements = list(map(attrgetter("verdict.judgements"), claims))
    bases = _bases(all_judgements, lambda judgement: judgement.p is not None) or _bases(all_judgements, _is_judged)
    yield _table_row(["result", "claim", *(KINDS[basis] for basis in bases), "why", "prompts"])
    yield f"|{' --- |' * (4 + len(bases))}"
    for result, verdict in claims:
        judgements: dict[str, Judgement] = {}
        outcomes: list[str] = []
        for basis in bases:
            judgement = verdict.judgements.get(basis)
            if judgement:
                judgements[basis] = judgement
            outcomes.append(_outcome(judgement) if judgement else "")
        if any(map(_is_judged, judgements.values())):
            prompts = " / ".join(map(str, _prompts(verdict)))
            yield _table_row([result, verdict.text, *outcomes, _reason(judgements), prompts])


def _bases(all_judgements: Sequence[Mapping[str, Judgement]], does_count: Callable[[Judgement], bool]) -> list[str]:
    """The kinds of judgement with at least one judgement that counts, in the order of `KINDS`."""
    bases: list[str] = []
    for basis in KINDS:
        for judgements in all_judgements:
            if basis in judgements and does_count(judgements[basis]):
                bases.append(basis)
                break
    return bases


def _table_row(cells: Sequence[str]) -> str:
    escaped_cells = [cell.replace("|", r"\|") for cell in cells]
    return f"| {' | '.join(escaped_cells)} |"


def _reason(judgements: Mapping[str, Judgement]) -> str:
    """The first judgement's reason in full, then the term that each other judgement names, if it is a new one."""
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
    """The reason of a judgement, or the part of its finding after the number; empty for a repeated one."""
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
