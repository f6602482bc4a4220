"""Printing of replays: the list of what there is, tables with published values beside measured ones, verdicts."""

from collections.abc import Sequence

from rich.text import Text

from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.replay.experiment import Experiment, clauses
from drafttree_lab.replay.replay import Replay
from drafttree_lab.replay.summary import Entry, ResultSummary
from drafttree_lab.replay.verdict import Verdict, count_outcomes

STYLES = {"reproduced": "green", "contradicted": "red", "undecided": "yellow", "left open": "yellow"}
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
    results = found.corrected
    for each in results:
        _show_result(each)
    verdicts = [verdict for each in results for verdict in each.verdicts]
    console.print(Text(f"claims: {len(verdicts)}", style="bold"))
    kinds = {"by counts": [each.by_counts for each in verdicts], "by time": [each.by_time for each in verdicts]}
    for kind, judgements in kinds.items():
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(judgements).items())
        console.print(Text(f"  {kind}: {outcomes or 'none'}"), soft_wrap=True)


def _show_result(each: ResultSummary) -> None:
    console = make_console()
    console.print(Text(f"{each.id}  {each.title}", style="bold"), soft_wrap=True)
    for verdict in each.verdicts:
        _show_verdict(verdict)
    if each.not_looping:
        console.print(Text(f"  without the {each.looping:.0%} of texts that loop:", style="dim"), soft_wrap=True)
    for verdict in each.not_looping:
        _show_verdict(verdict)
    for metric in dict.fromkeys(entry.metric for entry in each.entries if entry.measured):
        _show_values(metric, [entry for entry in each.entries if entry.metric == metric and entry.measured])
    reach = (f"{name}: no tree has more than {most} of {budget} nodes" for name, (most, budget) in each.reach.items())
    for note in [
        *filter(None, [each.costs]),
        *reach,
        *each.notes,
        *(f"{name}: {reason}" for name, reason in each.missing.items()),
    ]:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    console.print(Text(f"  {each.done} of {each.tasks} turns done", style="dim"), "")


def _show_verdict(verdict: Verdict) -> None:
    """A claim, and below it what counts and times say of it."""
    console = make_console()
    console.print(Text(f"  {verdict.text}" + (" (main)" if verdict.main else "")), soft_wrap=True)
    for kind, judgement in verdict.judgements.items():
        line = Text(f"    {kind:<11}")
        line.append(f"{judgement.outcome:<16}", style=STYLES.get(judgement.outcome, "dim"))
        needed = f"; about {judgement.needed} prompts would decide" if judgement.needed else ""
        line.append(f"{judgement.said}{needed}")
        console.print(line, soft_wrap=True)
        if judgement.reason:
            console.print(Text(f"{'':<31}{judgement.reason}", style="dim"), soft_wrap=True)


def _show_values(metric: str, entries: Sequence[Entry]) -> None:
    places = dict.fromkeys(entry.column for entry in entries)
    table = make_table(metric, *places, right=len(places))
    for method in dict.fromkeys(entry.method for entry in entries):
        cells = {entry.column: cell(entry) for entry in entries if entry.method == method}
        table.add_row(method, *(cells.get(where, "") for where in places))
    table.title = f"  {metric}: measured (published)"
    make_console().print(table)


def cell(entry: Entry) -> str:
    """The number of an entry, the paper's in brackets."""
    own = f"{entry.measured.mean:.2f}" if entry.measured else ""
    law = f", R {entry.by_law.mean:.2f}" if entry.by_law else ""
    return f"{own}{law}" + (f" ({entry.published:g})" if entry.published is not None else "")
