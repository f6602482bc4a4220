"""Printing of the benchmark of a long prompt that arrives."""

from rich.text import Text

from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.load.arrival import MOST, ArrivalBench


def show_arrival(result: ArrivalBench) -> None:
    """A line for each prompt, then the mean stretch and what was aimed at."""
    table = make_table("before", "beside", "stretch", "rounds", "longest", "until read", right=6)
    for each in result.arrivals:
        times = [f"{1e3 * seconds:.1f}" for seconds in (each.before, each.beside)]
        stretch, longest = f"{each.beside / each.before:.2f}", f"{1e3 * each.longest:.1f}"
        table.add_row(*times, stretch, str(each.rounds), longest, f"{each.reading:.2f} s")
    title = f"milliseconds per token of {result.running} texts; a prompt of {result.prompt_tokens} tokens arrives"
    make_console().print(Text(title), table, "", sep="\n", soft_wrap=True)
    print(f"{result.target}, {result.threads} threads; drafter: {result.drafter or 'none'}")
    stretch, worst = result.stretch, max(each.beside / each.before for each in result.arrivals)
    interval = "" if stretch.low is None else f" [{stretch.low:.2f}, {stretch.high:.2f}]"
    verdict = "reached" if worst <= MOST else "MISSED"
    print(f"stretch {stretch.mean:.2f}{interval}, the highest {worst:.2f}; {verdict} (aim: at most {MOST:g})")
