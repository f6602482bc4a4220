"""The page of a report, from the kept results of a replay."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drafttree.core.errors import ConfigError, InputError
from drafttree.evaluation.replay.paper import Metric, Paper, read_paper
from drafttree.evaluation.replay.results_folder import KeptResult
from drafttree.evaluation.replay.summary import Entry, ResultSummary
from drafttree.evaluation.replay.verdict import count_outcomes

UNITS: Mapping[Metric, str] = {
    "speedup": "speed-up over plain decoding",
    "tokens_per_second": "tokens per second",
    "tau": "tau, tokens per target pass",
    "delta": "delta, draft passes per round",
    "accept": "accepted per drafted level",
    "node_acceptance": "accepted per drafted node",
    "path": "accepted tokens per round",
    "rounds": "target passes per text",
    "ttft": "time to first token, ms",
    "tpot": "time per output token, ms",
    "peak_memory": "peak memory, MiB",
    "gain": "gain over the first verifier, %",
    "expansion": "growth of a tree, ms",
}


@dataclass(frozen=True)
class Grid:
    """One metric of a result as a table.

    Attributes:
        metric: in words.
        columns: sets, with temperature and value of the axis where there are several.
        rows: per method a cell for every column, None where there is none.
    """

    metric: str
    columns: list[str]
    rows: dict[str, list[Entry | None]]


@dataclass(frozen=True)
class Section:
    """A result on the page.

    Attributes:
        kept: its summary, command and environment.
        grids: a table for every metric that was measured or published.
        chart: inline SVG; empty for a table.
    """

    kept: KeptResult
    grids: list[Grid]
    chart: str


def write_report(results: Sequence[KeptResult], path: Path) -> None:
    """Write the page.

    Raises:
        ConfigError: jinja2 or matplotlib is not installed.
        InputError: the file cannot be written.
    """
    try:
        import jinja2

        from drafttree.interfaces.replay_report.charts import draw
    except ImportError as error:
        raise ConfigError(f'a report needs {error.name}; pip install "drafttree[report]"') from None
    loader = jinja2.PackageLoader("drafttree.interfaces.replay_report", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    papers = {name: read_paper(name) for name in dict.fromkeys(_paper(each) for each in results)}
    sections = [Section(each, make_grids(each.summary), draw(each.summary)) for each in results]
    text = environment.get_template("report.html").render(**_content(papers, sections))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; name another with -o") from None


def make_grids(summary: ResultSummary) -> list[Grid]:
    """The tables of a result."""
    known = [each for each in summary.entries if each.measured or each.published is not None]
    metrics: dict[Metric, None] = dict.fromkeys(each.metric for each in known)
    return [_grid(metric, known) for metric in metrics]


def column(entry: Entry) -> str:
    """The name of an entry's column."""
    parts = [entry.set, f"T = {entry.temperature:g}"] if entry.temperature else [entry.set]
    return ", ".join([*parts, *([str(entry.value)] if entry.value is not None else [])])


def _grid(metric: Metric, known: Sequence[Entry]) -> Grid:
    entries = [each for each in known if each.metric == metric]
    columns = list(dict.fromkeys(map(column, entries)))
    rows: dict[str, list[Entry | None]] = {each.method: [None] * len(columns) for each in entries}
    for each in entries:
        rows[each.method][columns.index(column(each))] = each
    return Grid(UNITS[metric], columns, rows)


def _content(papers: Mapping[str, Paper], sections: Sequence[Section]) -> dict[str, object]:
    verdicts = [(each.kept.summary.id, verdict) for each in sections for verdict in each.kept.summary.verdicts]
    return {
        "papers": papers,
        "sections": {name: [each for each in sections if _paper(each.kept) == name] for name in papers},
        "verdicts": sorted(verdicts, key=lambda pair: not pair[1].main),
        "outcomes": count_outcomes([verdict for _, verdict in verdicts]),
        "environment": sections[-1].kept.environment,
    }


def _paper(kept: KeptResult) -> str:
    return kept.summary.id.partition("/")[0]
