"""Prints a trace in the terminal: the text in colours, then acceptance, cuts and time."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from drafttree.evaluation.trace import PHASES, AcceptanceCell, Trace
from drafttree.interfaces.console import make_console, make_table

ACCEPTED, BONUS, REJECTED = "green", "yellow", "red"
DEPTHS, RANKS = 12, 5
"""The most depths and ranks in the table of acceptance."""


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
        hint = "-o trace.html writes a page with the tree of every round; --live grows them here"
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
    cut_counts = ", ".join(f"{rule} {count:,}" for rule, count in trace.cut.items())
    return [line, *([f"candidates dropped: {cut_counts}"] if cut_counts else [])]


def _acceptance(cells: list[AcceptanceCell]) -> Table:
    shown_cells = {(cell.depth, cell.rank): cell for cell in cells if cell.depth <= DEPTHS and cell.rank < RANKS}
    depths = max(depth for depth, _ in shown_cells)
    ranks = max(rank for _, rank in shown_cells)
    table = make_table("accepted, by rank and depth", *map(str, range(1, depths + 1)), right=depths)
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
    table.add_row("in all", *(f"{1e3 * seconds[phase]:.1f}" for phase in PHASES))
    return table
