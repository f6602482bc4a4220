"""Printing of the benchmarks of the `auto` policy."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from drafttree.core.cost_curve import CostCurve
from drafttree.evaluation.method import PLAIN
from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.experiment.auto import DYNATREE, TALON, AutoBench, AutoRow
from drafttree_lab.experiment.auto_aims import aims, shortfalls
from drafttree_lab.experiment.calibration import ReliabilityBench
from drafttree_lab.experiment.timed_row import AUTO, RIVALS, TimedRow

SIZES = (4, 16, 64)
"""Nodes for which the cost of a target pass is shown."""


def show_auto(result: AutoBench) -> None:
    """The costs of every place, the counted and the timed rows, and what was aimed at."""
    console = make_console()
    columns = ["costs, in plain rounds", *(f"v({nodes})" for nodes in SIZES), "draft 1", "draft 8", "overhead"]
    table = make_table(*columns, right=len(columns) - 1)
    for place, curves in result.costs.items():
        for drafter, curve in curves.items():
            table.add_row(f"{place}: {drafter}", *_costs(curve))
    console.print(table, "")
    for place in dict.fromkeys(row.place for row in result.rows):
        rows = [row for row in result.rows if row.place == place]
        _show_counted(place, rows)
        if any(row.timed for row in rows):
            _show_timed(place, rows)
    if len(result.costs) > 1:
        _show_trees(result)
    for line in _conclusions(result.rows):
        console.print(Text(line), soft_wrap=True)


def show_reliability(result: ReliabilityBench) -> None:
    """A table of bins for every drafter and temperature, with the calibration error before and after."""
    for curve in result.curves:
        table = make_table("drafter's probability", "nodes", "accepted", "before", "after", right=4)
        table.title = f"{curve.drafter}, T = {curve.temperature:g}: {curve.nodes} judged nodes"
        for each in curve.bins:
            shares = [f"{share:.3f}" for share in (each.accepted, each.drafted, each.calibrated)]
            table.add_row(f"{each.low:.1f} to {each.high:.1f}", str(each.nodes), *shares)
        errors = f"{curve.error_before:.3f} before, {curve.error_after:.3f} after"
        make_console().print(table, f"expected calibration error: {errors}", "", sep="\n")


def _costs(curve: CostCurve) -> Iterator[str]:
    target, draft = curve.target, curve.draft[0]
    yield from (f"{target.at(nodes) / target.at(1):.2f}" for nodes in SIZES)
    yield from (f"{draft.later.at(width) / curve.plain_round:.3f}" for width in (1, 8))
    yield f"{curve.overhead / curve.plain_round:.3f}"


def _show_counted(place: str, rows: Sequence[AutoRow]) -> None:
    columns = ["drafter", "prompts", "best", "T", "tau", "delta", "nodes", "levels", AUTO, "best", TALON, DYNATREE]
    table = make_table(*columns, "of best", right=0)
    for column in table.columns[3:]:
        column.justify = "right"
    table.title = f"{place}, counted: R by the cost curve, tau to levels of auto"
    for row in rows:
        own = row.counted[AUTO]
        trees = [f"{value:.2f}" for value in (own.tau, own.delta, own.nodes, own.levels)]
        ratios = [f"{row.counted[name].speedup:.2f}" for name in (AUTO, row.best, TALON, DYNATREE)]
        table.add_row(
            row.drafter, row.prompts, row.best, f"{row.temperature:g}", *trees, *ratios, f"{row.over_best:.3f}"
        )
    make_console().print(table, "")


def _show_timed(place: str, rows: Sequence[AutoRow]) -> None:
    names = ["tau", "v", "c", "delta", "h", "R law"]
    columns = ["drafter", "prompts", "best", "T", *names, "plain/s", AUTO, "best", *RIVALS, "of best", "of these"]
    table = make_table(*columns)
    for column in table.columns[3:]:
        column.justify = "right"
    table.title = f"{place}, timed by turns: decoding over plain decoding, 95 % interval of auto; the terms are auto's"
    for row in rows:
        if timed := row.timed:
            table.add_row(row.drafter, row.prompts, timed.best, f"{row.temperature:g}", *_timed_cells(timed))
    make_console().print(table, "")


def _timed_cells(timed: TimedRow) -> Iterator[str]:
    own = timed.rows[AUTO]
    law = own.law
    times = (law.v, law.c, law.delta, law.h, own.predicted)
    yield f"{law.tau:.2f}"
    yield from ("-" if own.doubt else f"{term:.2f}" for term in times)
    yield f"{timed.rows[PLAIN].tokens_per_second:.1f}"
    yield "-" if own.doubt else f"{1 + timed.over_plain[AUTO].mean:.2f} ±{timed.over_plain[AUTO].margin:.2f}"
    for name in (timed.best, *RIVALS):
        yield "-" if timed.rows[name].doubt else f"{1 + timed.over_plain[name].mean:.2f}"
    disturbed = any(row.doubt for row in timed.rows.values())
    yield from ("-" if disturbed else f"{ratio:.3f}" for ratio in (1 + timed.over_best.mean, timed.over_rivals))


def _show_trees(result: AutoBench) -> None:
    """The trees of auto at every place, side by side."""
    places = list(result.costs)
    table = make_table("trees of auto: nodes / levels / R", *places, right=len(places))
    found = {(row.drafter, row.prompts, row.temperature, row.place): row.counted[AUTO] for row in result.rows}
    for drafter, prompts, temperature in dict.fromkeys(key[:3] for key in found):
        trees = [found.get((drafter, prompts, temperature, place)) for place in places]
        cells = [f"{tree.nodes:.1f} / {tree.levels:.1f} / {tree.speedup:.2f}" if tree else "" for tree in trees]
        table.add_row(f"{drafter}, {prompts}, T = {temperature:g}", *cells)
    make_console().print(table, "")


def _conclusions(rows: Sequence[AutoRow]) -> Iterator[str]:
    for aim in aims(rows):
        yield f"{aim.sentence}; {aim.verdict} (aim {aim.least:.0%})"
    yield from shortfalls(rows)
