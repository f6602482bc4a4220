"""The tables of a result: for every metric methods by columns, ours and the paper's numbers beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drafttree_lab.replay.paper import UNTOLD, Metric
from drafttree_lab.replay.summary import Entry, ResultSummary
from drafttree_lab.report.notation import decimals

UNITS: Mapping[str, str] = {
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
    "drafted_share": "drafted share of the text",
    "gain": "gain in tau, %",
    "speed_gain": "gain in speed, %",
    "memory_gain": "gain in peak memory, %",
    "expansion": "growth of a tree, ms",
    "oracle_gap": "gap between tokens and draft passes of a round",
    "first_ranks_at_level_1": "first two ranks of those accepted on level 1",
    "first_ranks_below": "first two ranks of those accepted below",
    "rounds_per_second": "rounds per second",
    "overhead_share": "share of time outside both models",
}
"""Every metric in words."""


@dataclass(frozen=True)
class Column:
    """Of a table.

    Attributes:
        name: set of prompts, with temperature and value of the axis where there are several.
        measured: whether we have a number in it.
        published: whether the paper has one.
    """

    name: str
    measured: bool
    published: bool


@dataclass(frozen=True)
class Grid:
    """One metric of a result as a table.

    Attributes:
        metric: the metric in words.
        models: models of the published numbers.
        columns: columns from left to right.
        rows: per method an entry for every column, None where there is none.
        reach: by method, the most nodes of a tree and the budget, where no tree reached it.
        by_law: whether speed-ups by the law are in it.
        decimals: decimals of the published numbers.
    """

    metric: str
    models: list[str]
    columns: list[Column]
    rows: dict[str, list[Entry | None]]
    reach: Mapping[str, tuple[int, int]]
    by_law: bool
    decimals: int


def make_grids(summary: ResultSummary) -> list[Grid]:
    """A table for every metric that was measured or published."""
    known = [each for each in summary.entries if each.measured or each.published is not None]
    metrics: dict[Metric, None] = dict.fromkeys(each.metric for each in known)
    return [_grid([each for each in known if each.metric == metric], summary.reach) for metric in metrics]


def column(entry: Entry) -> str:
    """The name of an entry's column."""
    name = "set not told" if entry.set == UNTOLD else entry.set
    parts = [name, f"T = {entry.temperature:g}" if entry.temperature else ""]
    value = "" if entry.value in (None, entry.temperature) else str(entry.value)
    return ", ".join(filter(None, [*parts, value]))


def _grid(entries: Sequence[Entry], reach: Mapping[str, tuple[int, int]]) -> Grid:
    names = list(dict.fromkeys(map(column, entries)))
    rows: dict[str, list[Entry | None]] = {each.method: [None] * len(names) for each in entries}
    for each in entries:
        rows[each.method][names.index(column(each))] = each
    models = dict.fromkeys(each.model for each in entries if each.model and each.published is not None)
    return Grid(
        metric=UNITS[entries[0].metric],
        models=list(models),
        columns=[_column(name, entries) for name in names],
        rows=rows,
        reach=reach,
        by_law=any(each.by_law for each in entries),
        decimals=decimals([each.published for each in entries if each.published is not None]),
    )


def _column(name: str, entries: Sequence[Entry]) -> Column:
    own = [each for each in entries if column(each) == name]
    return Column(name, any(each.measured for each in own), any(each.published is not None for each in own))
