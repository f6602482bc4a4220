"""Tables of the benches."""

import math

from drafttree.interfaces.console import make_console, make_table
from drafttree.measure.interval import Interval
from drafttree_lab.experiment.acceptance import PUBLISHED_GAIN, Acceptance
from drafttree_lab.micro.expansion import ExpansionBench
from drafttree_lab.micro.verifiers import VerifierBench


def show_verifier_times(result: VerifierBench) -> None:
    """Milliseconds of every verifier, a table per vocabulary, beside those of the logits."""
    sizes = list(dict.fromkeys(row.nodes for row in result.rows))
    where = f"hidden {result.hidden}, temperature {result.temperature:g}, {result.device}, {result.threads} threads"
    for vocab in dict.fromkeys(row.vocab for row in result.rows):
        rows = [row for row in result.rows if row.vocab == vocab]
        columns = [f"{name} {size}" for size in sizes for name in ("ms", "share", "grow")]
        table = make_table("verifier", *columns, right=len(columns))
        table.title = f"vocabulary {vocab}; {where}"
        logits = {row.nodes: row.logits for row in rows}
        table.add_row("(logits)", *(cell for size in sizes for cell in (_milliseconds(logits[size]), "", "")))
        for name in dict.fromkeys(row.verifier for row in rows):
            times = [row for row in rows if row.verifier == name]
            cells = [(_milliseconds(row.verify), f"{row.share:.1%}", _milliseconds(row.growing)) for row in times]
            table.add_row(name, *(cell for group in cells for cell in group))
        make_console().print(table, "")
    print("ms: judging a tree of so many nodes; share: of that in judging and logits; grow: its noise or its draws")


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


def show_acceptance(result: Acceptance) -> None:
    """Tokens per round of every shape and verifier, a table per temperature and task."""
    for temperature, task in dict.fromkeys((row.temperature, row.task) for row in result.rows):
        rows = [row for row in result.rows if (row.temperature, row.task) == (temperature, task)]
        names = [*rows[0].tokens, *(["traversal over rrsw"] if rows[0].gain else [])]
        table = make_table("tree", *names, right=len(names))
        table.title = f"T = {temperature:g}, {task}: tokens per round, {rows[0].prompts} prompts"
        for row in rows:
            cells = [_with_margin(each) for each in row.tokens.values()]
            gain = [_with_margin(row.gain, "+.1%", ".1%")] if row.gain else []
            table.add_row(row.shape, *cells, *gain)
        make_console().print(table, "")
    low, high = PUBLISHED_GAIN
    print(f"± is half a 95 % confidence interval over prompts; {result.rounds} rounds, {result.stride} tokens apart")
    if any(row.gain for row in result.rows):
        print(f"published gain of traversal over rrsw at T = 1: {low:.1%} to {high:.1%}")


def _with_margin(each: Interval, form: str = ".3f", margin: str = ".3f") -> str:
    """An estimate with its interval, which one prompt does not have."""
    own = f"{each.mean:{form}}"
    return f"{own} ±{each.margin:{margin}}" if math.isfinite(each.margin) else own


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"
