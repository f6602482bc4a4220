"""Printing of the benchmark of growing trees."""

from drafttree.interfaces.console import make_console, make_table
from drafttree_lab.bench.expansion import ExpansionBench


def show_expansion(result: ExpansionBench) -> None:
    """Milliseconds of every policy for a tree and for a level, a table per vocabulary and exponent."""
    where = f"{result.device}, {result.threads} threads, {result.repeats} trees each"
    for vocab, alpha in dict.fromkeys((row.vocab, row.alpha) for row in result.rows):
        table = make_table("policy", "nodes", "levels", "ms a tree", "ms a level", "mean ms a tree", right=5)
        table.title = f"vocabulary {vocab}, alpha {alpha:g}; {where}"
        for row in (row for row in result.rows if (row.vocab, row.alpha) == (vocab, alpha)):
            times = [f"{seconds * 1e3:.3f}" for seconds in (row.seconds, row.per_level, row.mean_seconds)]
            table.add_row(row.policy, str(row.nodes), str(row.levels), *times)
        make_console().print(table, "")
    print("medians but for the last column; the drafter's passes are left out, the softmax of its logits is not")
