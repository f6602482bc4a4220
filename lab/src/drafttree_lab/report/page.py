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
    for kept in results:
        name, _, own = kept.summary.id.partition("/")
        paper = papers.setdefault(name, read_paper(name))
        result = paper.results.get(own)
        axis = result.axis.name if result and result.axis else ""
        section = {"kept": kept, "grids": make_grids(kept.summary), "chart": draw(kept.summary, axis), "axis": axis}
        section["published"] = result.published if result else []
        section["is_measured"] = any(each.is_ours for each in kept.summary.entries)
        sections.setdefault(name, []).append(section)
    claims = [(each.summary.id, verdict) for each in results for verdict in each.summary.verdicts]
    return page.render(
        papers=papers,
        sections=sections,
        main_claims=[each for each in claims if each[1].main],
        further_claims=[each for each in claims if not each[1].main],
        tallies=tally([verdict for _, verdict in claims]),
        kinds=KINDS,
        outcomes=OUTCOMES,
        corrected_for={
            name: sorted({own.claims for _, each in claims if (own := getattr(each, kind)) and own.claims})
            for kind, name in KINDS.items()
        },
        environment=results[-1].environment,
        units=UNITS,
        law=LAW,
        version=drafttree.__version__,
    )


def claims_table(results: Sequence[KeptResult]) -> str:
    """The claims that were judged, main ones first, and below them the number of each outcome and the environment."""
    rows = [(each.summary.id, verdict) for each in results for verdict in each.summary.verdicts]
    tallies = [
        f"{KINDS[kind].capitalize()}: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}."
        for kind, counts in tally([verdict for _, verdict in rows]).items()
    ]
    environment = ", ".join(f"{name} {value}" for name, value in results[-1].environment.items())
    told = f"{' '.join(tallies)} Numbers are ratios; for an order of methods they are Kendall's tau. {environment}."
    return "\n".join([*_table_rows(sorted(rows, key=lambda row: not row[1].main)), "", told, ""])


def tally(verdicts: Sequence[Verdict]) -> dict[str, dict[str, int]]:
    """By kind, how many judgements have each outcome; kinds without any are left out."""
    found = {kind: count_outcomes(getattr(each, kind) for each in verdicts) for kind in KINDS}
    return {kind: {name: own[name] for name in OUTCOMES if name in own} for kind, own in found.items() if own}


def make_grids(summary: ResultSummary) -> list[Grid]:
    """A table for every metric that was measured or published."""
    known = [each for each in summary.entries if each.is_ours or each.published is not None]
    grids = []
    for metric in dict.fromkeys(each.metric for each in known):
        own = [each for each in known if each.metric == metric]
        columns: dict[str, tuple[bool, bool]] = dict.fromkeys((each.column for each in own), (False, False))
        rows: dict[str, list[Entry | None]] = {each.method: [None] * len(columns) for each in own}
        for each in own:
            measured, published = columns[each.column]
            columns[each.column] = (measured or each.is_ours, published or each.published is not None)
            rows[each.method][list(columns).index(each.column)] = each
        models = dict.fromkeys(each.model for each in own if each.model and each.published is not None)
        places = decimals([each.published for each in own if each.published])
        grids.append(Grid(UNITS[metric], list(models), columns, rows, any(each.by_law for each in own), places))
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
    return list(dict.fromkeys(each.prompts for each in verdict.judgements.values() if each.prompts))


def _table_rows(rows: Sequence[tuple[str, Verdict]]) -> Iterator[str]:
    """The rows of claims that were judged, in the kinds of judgement that decide anything, or all if none does."""
    every = [own for _, each in rows for own in each.judgements.items()]
    deciding = {kind for kind, own in every if own.p is not None} or {kind for kind, own in every if _is_judged(own)}
    kinds = [kind for kind in KINDS if kind in deciding]
    yield f"| {' | '.join(['result', 'claim', *(KINDS[kind] for kind in kinds), 'why', 'prompts'])} |"
    yield f"|{' --- |' * (4 + len(kinds))}"
    for result, verdict in rows:
        found = {kind: verdict.judgements.get(kind) for kind in kinds}
        if not any(own and _is_judged(own) for own in found.values()):
            continue
        # the reason of the first kind in full; of the others the term, where they name another
        whys = {kind: why for kind, own in found.items() if own and (why := _why(own))}
        first = next(iter(whys), None)
        terms = {why.partition(" (")[0]: kind for kind, why in reversed(whys.items())}
        others = [f"{KINDS[kind]} {term}" for term, kind in reversed(terms.items()) if kind != first]
        why = "; ".join([whys[first], *others]) if first else ""
        outcomes = [_outcome(own) if own else "" for own in found.values()]
        cells = result, verdict.text, *outcomes, why, " / ".join(map(str, _prompts(verdict)))
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
    ends = "" if judgement.low is None or judgement.high is None else f" [{judgement.low:.2f}, {judgement.high:.2f}]"
    repeated = f", as {judgement.repeats}, {judgement.repeated}" if judgement.repeats else ""
    return f"{judgement.outcome}{number}{ends}{repeated}"
