"""Printing of replays: the list of what there is, tables with published values beside measured ones, verdicts."""

from collections.abc import Sequence

from rich.text import Text

from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.replay.experiment import Experiment, clauses
from drafttree_lab.replay.replay import Replay
from drafttree_lab.replay.summary import Entry, ResultSummary
from drafttree_lab.replay.verdict import Verdict, count_outcomes

STYLES = {"reproduced": "green", "contradicted": "red", "undecided": "yellow"}
PACE = 100.0
"""Tokens per second by which minutes are guessed before anything has run."""


def show_list(planned: Sequence[Experiment], prompts: int, repeats: int) -> None:
    """Every result: runs, guessed minutes, and what of it cannot be replayed."""
    table = make_table("result", "title", "runs", "minutes", "not replayed", right=0)
    for column in table.columns[2:4]:
        column.justify = "right"
    for each in planned:
        runs = sum(len(block.ways) for block in each.blocks) * prompts * repeats
        tokens = sum(len(block.ways) * block.setting.max_new_tokens for block in each.blocks) * prompts * repeats
        reason = each.result.unavailable or "; ".join([*clauses(each.missing), *each.notes])
        table.add_row(each.id, each.result.title, str(runs or ""), f"{tokens / PACE / 60:.0f}" if runs else "", reason)
    make_console().print(table)


def show_replay(found: Replay) -> None:
    """Every result with its verdicts and values, and how many claims have each outcome."""
    console = make_console()
    for each in found.results:
        _show_result(each)
    verdicts = [verdict for each in found.results for verdict in each.verdicts]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(verdicts).items())
    console.print(Text(f"claims: {outcomes or 'none'}", style="bold"), soft_wrap=True)


def _show_result(each: ResultSummary) -> None:
    console = make_console()
    console.print(Text(f"{each.id}  {each.title}", style="bold"), soft_wrap=True)
    for verdict in each.verdicts:
        console.print(_line(verdict), soft_wrap=True)
    for verdict in each.not_looping:
        console.print(_line(verdict, f"without the {each.looping:.0%} of texts that loop, "), soft_wrap=True)
    for metric in dict.fromkeys(entry.metric for entry in each.entries if entry.measured):
        _show_values(metric, [entry for entry in each.entries if entry.metric == metric and entry.measured])
    for note in [*each.notes, *(f"{name}: {reason}" for name, reason in each.missing.items())]:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    console.print(Text(f"  {each.done} of {each.tasks} turns done", style="dim"), "")


def _line(verdict: Verdict, which: str = "") -> Text:
    needed = f"; about {verdict.needed} prompts would decide" if verdict.needed else ""
    line = Text("  ")
    line.append(f"{verdict.outcome:<16}", style=STYLES.get(verdict.outcome, "dim"))
    line.append(f"{which}{verdict.text}: {verdict.said}{needed}")
    return line


def _show_values(metric: str, entries: Sequence[Entry]) -> None:
    places = dict.fromkeys(place(entry) for entry in entries)
    table = make_table(metric, *places, right=len(places))
    for method in dict.fromkeys(entry.method for entry in entries):
        cells = {place(entry): cell(entry) for entry in entries if entry.method == method}
        table.add_row(method, *(cells.get(where, "") for where in places))
    table.title = f"  {metric}: measured (published)"
    make_console().print(table)


def place(entry: Entry) -> str:
    """The column of an entry."""
    value = "" if entry.value is None else f" {entry.value}"
    warmth = f", T = {entry.temperature:g}" if entry.temperature else ""
    return f"{entry.set}{warmth}{value}"


def cell(entry: Entry) -> str:
    """The number of an entry, the paper's in brackets."""
    own = f"{entry.measured.mean:.2f}" if entry.measured else ""
    law = f", R {entry.by_law:.2f}" if entry.by_law else ""
    return f"{own}{law}" + (f" ({entry.published:g})" if entry.published is not None else "")
