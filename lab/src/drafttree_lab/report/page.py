"""The page of a report, from the kept results of a replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import drafttree
from drafttree.core.errors import ConfigError, InputError
from drafttree_lab.replay.main_claims import count_main_claims
from drafttree_lab.replay.paper import Order, Paper, Published, read_paper
from drafttree_lab.replay.results_folder import KeptResult
from drafttree_lab.report.claim_rows import KINDS, OUTCOMES, ClaimRow, make_rows, tally
from drafttree_lab.report.claims_table import claims_table
from drafttree_lab.report.notation import FILTERS
from drafttree_lab.report.tables import UNITS, Grid, make_grids

MARKDOWN = ".md"


@dataclass(frozen=True)
class Section:
    """A result on the page.

    Attributes:
        kept: its summary, command and environment.
        claims: its verdicts.
        not_looping: its verdicts on texts that do not loop.
        tallies: by kind of judgement, how many of its claims have each outcome.
        grids: a table for every metric that was measured or published.
        chart: inline SVG; empty for a table.
        axis: the name of what it varies; empty for nothing.
        published: every number that the paper prints, of all its models.
    """

    kept: KeptResult
    claims: list[ClaimRow]
    not_looping: list[ClaimRow]
    tallies: Mapping[str, Mapping[str, int]]
    grids: list[Grid]
    chart: str
    axis: str
    published: list[Published]

    @property
    def is_measured(self) -> bool:
        """Whether any number of it is ours."""
        return any(each.measured for each in self.kept.summary.entries)


def write_report(results: Sequence[KeptResult], path: Path) -> None:
    """Write the page, or the table of its claims alone to a file that ends in `.md`.

    Raises:
        ConfigError: jinja2 or matplotlib is not installed, and the page needs them.
        InputError: the file cannot be written.
    """
    text = claims_table(results) if path.suffix == MARKDOWN else render(results)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; name another with -o") from None


def render(results: Sequence[KeptResult]) -> str:
    """The page as text.

    Raises:
        ConfigError: jinja2 or matplotlib is not installed, or a paper is unknown.
    """
    try:
        import jinja2

        from drafttree_lab.report.charts import draw
    except ImportError as error:
        raise ConfigError(f'a report needs {error.name}; pip install "drafttree[report]"') from None
    loader = jinja2.PackageLoader("drafttree_lab.report", "")
    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(loader=loader, autoescape=True, **options)
    environment.filters |= FILTERS
    papers = {name: read_paper(name) for name in dict.fromkeys(map(_paper, results))}
    sections = [_section(each, papers[_paper(each)], draw) for each in results]
    return environment.get_template("report.html").render(**_content(papers, sections))


def _section(kept: KeptResult, paper: Paper, draw) -> Section:
    summary = kept.summary
    result = paper.results.get(summary.id.partition("/")[2])
    axis = result.axis.name if result and result.axis else ""
    orders = {claim.id for claim in result.claims if isinstance(claim, Order)} if result else set()
    return Section(
        kept=kept,
        claims=make_rows(summary.id, summary.verdicts, orders),
        not_looping=make_rows(summary.id, summary.not_looping, orders),
        tallies=tally(summary.verdicts),
        grids=make_grids(summary),
        chart=draw(summary, axis),
        axis=axis,
        published=result.published if result else [],
    )


def _content(papers: Mapping[str, Paper], sections: Sequence[Section]) -> dict[str, object]:
    claims = [claim for each in sections for claim in each.claims]
    return {
        "papers": papers,
        "sections": {name: [each for each in sections if _paper(each.kept) == name] for name in papers},
        "main_claims": [claim for claim in claims if claim.verdict.main],
        "further_claims": [claim for claim in claims if not claim.verdict.main],
        "tallies": tally([claim.verdict for claim in claims]),
        "kinds": KINDS,
        "outcomes": OUTCOMES,
        "corrected_for": count_main_claims(),
        "environment": sections[-1].kept.environment,
        "units": UNITS,
        "version": drafttree.__version__,
    }


def _paper(kept: KeptResult) -> str:
    return kept.summary.id.partition("/")[0]
