"""Prints a trace in the terminal: the text in colours, then acceptance, cuts and time."""

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text

from drafttree.evaluation.trace import PHASES, AcceptanceCell, Rule, Trace
from drafttree.interfaces.console import make_console, make_table

ACCEPTED, BONUS, REJECTED = "green", "yellow", "red"
DEPTHS, RANKS = 12, 5
"""The most depths and ranks in the table of acceptance."""
CUTS = {
    Rule.KEEP: "by the policy",
    Rule.BUDGET: "because the tree was full",
    Rule.RERANK: "by the final ranking",
}
"""By the rule that dropped candidates: how, in words."""


def show_trace(trace: Trace, output: Path | None) -> None:
    """Print the text, figures, acceptance by depth and rank, cuts and times; without `output`, how to get a page."""
    console = make_console()
    console.print(coloured(trace), soft_wrap=True)
    for line in _figures(trace):
        console.print(Text(line, style="dim"), soft_wrap=True)
    if trace.acceptance:
        console.print("", _acceptance(trace.acceptance), sep="\n")
    console.print("", _times(trace), sep="\n")
    if output is None:
        hint = "-o trace.html writes a page with the tree of every round; --live shows the trees here as they grow"
        console.print("", Text(hint, style="dim"), sep="\n", soft_wrap=True)


def coloured(trace: Trace) -> Text:
    """The prompt and the text, with accepted tokens in green and bonus tokens in yellow."""
    text = Text(trace.prompt, style="dim")
    begin = 0
    for traced_round in trace.rounds:
        middle, end = begin + traced_round.accepted, begin + traced_round.committed
        text.append("".join(trace.pieces[begin:middle]), style=f"not dim {ACCEPTED}")
        text.append("".join(trace.pieces[middle:end]), style=f"not dim {BONUS}")
        begin = end
    return text


def _figures(trace: Trace) -> list[str]:
    figures = trace.metrics
    rounds = len(trace.rounds)
    drafted = sum(traced_round.size - 1 for traced_round in trace.rounds)
    accepted = sum(traced_round.accepted for traced_round in trace.rounds)
    line = f"{figures['tokens']} tokens in {rounds} rounds, {figures['mean_accepted_tokens']:.2f} per target pass; "
    line += f"{accepted} of {drafted} drafted tokens accepted ({trace.finish_reason})"
    return [line, *([dropped] if (dropped := dropped_candidates(trace.cut)) else [])]


def dropped_candidates(counts: Mapping[str, int]) -> str:
    """A sentence about the candidates that each rule dropped; empty if there are none."""
    rule_counts = [f"{count:,} {CUTS.get(Rule(rule), rule)}" for rule, count in counts.items()]
    return f"Candidates dropped: {', '.join(rule_counts)}" if rule_counts else ""


def _acceptance(cells: list[AcceptanceCell]) -> Table:
    shown_cells = {(cell.depth, cell.rank): cell for cell in cells if cell.depth <= DEPTHS and cell.rank < RANKS}
    depths = max(depth for depth, _ in shown_cells)
    ranks = max(rank for _, rank in shown_cells)
    table = make_table("accepted, by rank (rows) and depth", *map(str, range(1, depths + 1)), right=depths)
    for rank in range(ranks + 1):
        row = [shown_cells.get((depth, rank)) for depth in range(1, depths + 1)]
        shares = [f"{cell.accepted / cell.judged:.0%}" if cell and cell.judged else "" for cell in row]
        table.add_row(str(rank + 1), *shares)
    return table


def _times(trace: Trace) -> Table:
    table = make_table("ms", *PHASES, right=len(PHASES))
    rounds = max(len(trace.rounds), 1)
    seconds = trace.seconds
    table.add_row("per round", *(f"{1e3 * seconds[phase] / rounds:.2f}" for phase in PHASES))
    table.add_row("in total", *(f"{1e3 * seconds[phase]:.1f}" for phase in PHASES))
    return table
