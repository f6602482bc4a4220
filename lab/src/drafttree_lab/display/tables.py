"""Tables of the benches."""

import math
from collections.abc import Sequence

from rich.table import Table

from drafttree.interfaces.console import make_console, make_table
from drafttree.measure.interval import Interval
from drafttree.measure.method import NO_DRAFTER, PLAIN
from drafttree_lab.experiment.acceptance import PUBLISHED_GAIN, Acceptance
from drafttree_lab.experiment.exact_text import ExactTextRow
from drafttree_lab.experiment.law import BEHIND, LawBench
from drafttree_lab.experiment.memory import MemoryBench
from drafttree_lab.experiment.methods import MethodBench, MethodRow, PeerRow
from drafttree_lab.experiment.overhead import PARTS, Overhead
from drafttree_lab.micro.expansion import ExpansionBench
from drafttree_lab.micro.verifiers import VerifierBench


def show_exact_text(rows: list[ExactTextRow]) -> None:
    """What `exact_text` costs and changes."""
    table = make_table("", "tokens/s", "with exact_text", "cost", "as plain decoding", "with exact_text", right=5)
    for row in rows:
        speeds, same = [f"{speed:.1f}" for speed in row.speeds], [f"{count}/{row.prompts}" for count in row.same_text]
        table.add_row(row.policy, *speeds, f"{row.cost:+.1%}", *same)
    make_console().print(table)


def show_methods(result: MethodBench) -> None:
    """The law's terms of every method by group of prompts, then what the drafters cost."""
    for group in dict.fromkeys(row.group for row in result.rows):
        rows = [row for row in result.rows if row.group == group]
        make_console().print(_law_rows(group, rows))
        for row in rows:
            if row.doubt:
                print(f"{row.method}: {row.doubt}")
        if peers := [peer for peer in result.peers if peer.group == group]:
            make_console().print(_peers(peers))
    print(f"{result.looping} of {result.prompts} texts loop (their last 48 tokens repeat with a period of at most 16)")
    if not result.costs:
        return
    table = make_table("drafter", "passes a round", "ms a pass", "weights, MB", "cache, MB", right=4)
    for cost in result.costs:
        sizes = [f"{size / 1e6:.2f}" for size in (cost.weight_bytes, cost.cache_bytes)]
        table.add_row(cost.drafter, f"{cost.passes:.2f}", f"{cost.seconds * 1e3:.2f}", *sizes)
    make_console().print(table)


def _law_rows(group: str, rows: Sequence[MethodRow]) -> Table:
    """The terms of the law, and the shares of the drafted nodes and levels that were accepted."""
    columns = ["tau", "delta", "v", "c", "h", "R law", "R", "95 %", "over its chain"]
    columns += ["tokens/s", "of nodes", "of levels", "nodes"]
    table = make_table("method", *columns, right=len(columns))
    table.title = f"{group}: {rows[0].prompts} prompts"
    for row in rows:
        law = row.law
        counts = [f"{law.tau:.2f}", f"{law.delta:.2f}"]
        times = ["-"] * 5 if row.doubt else _numbers(law.v, law.c, law.h, row.predicted, law.measured)
        shares = [f"{row.acceptance_rate:.1%}", f"{row.level_acceptance:.1%}"]
        chain = row.over_chain if not row.doubt else None
        cells = [
            "" if row.doubt else _interval(row.over_plain),
            f"{chain.mean:.2f} {_interval(chain)}" if chain else "",
            f"{row.tokens_per_second:.1f}",
            *shares,
            f"{row.mean_nodes:.1f}",
        ]
        table.add_row(row.method, *counts, *times, *cells)
    return table


def _numbers(*values: float) -> list[str]:
    return [f"{value:.2f}" for value in values]


def _interval(ratio: Interval) -> str:
    return "" if ratio.low is None else f"[{ratio.low:.2f}, {ratio.high:.2f}]"


def show_law(law: LawBench) -> None:
    """The machine and its passes, then decoding against both limits: the memory bandwidth and the law without h."""
    console = make_console()
    console.print(
        f"{law.device}, {law.dtype}, {law.parameters / 1e6:.1f} M parameters; a large copy moves "
        f"{law.bandwidth / 1e9:.1f} GB/s; behind {law.context} tokens a target pass reads "
        f"{law.target_bytes / 1e6:.1f} MB, a draft pass {law.draft_bytes / 1e6:.1f} MB",
        soft_wrap=True,
    )
    passes = make_table("nodes", *map(str, law.passes), right=len(law.passes))
    passes.add_row("ms per pass", *(f"{seconds * 1e3:.2f}" for seconds in law.passes.values()))
    passes.add_row("v", *(f"{law.v(nodes):.2f}" for nodes in law.passes))
    console.print(passes)
    if law.contexts:
        table = make_table("tokens before", *(f"ms over {nodes} nodes" for nodes in BEHIND), right=len(BEHIND))
        for context, times in law.contexts.items():
            table.add_row(str(context), *(f"{times[nodes] * 1e3:.2f}" for nodes in BEHIND))
        console.print(table)
    show_methods(law.bench)
    columns = ["", "tokens/s", "GB/s", "of the roofline", "R", "without prompts", "R at h = 0", "share of it"]
    table = make_table(*columns, right=len(columns) - 1)
    for row in (row for row in law.bench.rows if row.group == "all"):
        moved, free = law.moved(row), row.law.without_host
        ratios = [*_numbers(row.law.measured, row.law.decoding, free), f"{row.law.decoding / free:.0%}"]
        cells = [f"{row.tokens_per_second:.1f}", f"{moved / 1e9:.1f}", f"{moved / law.bandwidth:.0%}"]
        table.add_row(row.method, *cells, *(["-"] * 4 if row.doubt else ratios))
    console.print(table)
    for target in law.targets():
        bound, verdict = "at most" if target.is_upper else "at least", "met" if target.met else "missed"
        console.print(f"{target.name}: {target.found:.2f}; the target is {bound} {target.bound:.2f}: {verdict}")


def show_overhead(results: list[Overhead]) -> None:
    """The time of a round outside the two models, by part."""
    columns = ["policy", "round", "target", "draft", "outside", "h", *PARTS, "operations", "calls"]
    table = make_table(*columns, right=len(columns) - 1)
    table.title = "mean µs per round; h is 'outside' in plain passes, then its parts; torch operations and own calls:"
    for result in results:
        passes = [result.round, result.target, result.draft, result.seconds]
        parts = [getattr(result, part) for part in PARTS]
        cells = [f"{seconds * 1e6:.0f}" for seconds in passes + parts]
        work = f"{result.operations:.0f}", f"{result.calls:.0f}"
        table.add_row(result.policy, *cells[: len(passes)], f"{result.h:.3f}", *cells[len(passes) :], *work)
    make_console().print(table)


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


def show_memory(result: MemoryBench) -> None:
    """Megabytes of every method, those of the GPU where one was in use."""
    on_device = any(use.device_peak for use in result.uses.values())
    names = ["loaded", "peak", "added", *(["GPU loaded", "GPU peak", "GPU added"] if on_device else [])]
    table = make_table("MB", *names, right=len(names))
    for spec, use in result.uses.items():
        sizes = [use.loaded, use.peak, use.added, use.device_loaded, use.device_peak, use.device_added]
        table.add_row(PLAIN if spec == NO_DRAFTER else spec, *(f"{size / 1e6:.1f}" for size in sizes[: len(names)]))
    make_console().print(table)


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


def _peers(rows: list[PeerRow]) -> Table:
    table = make_table("", "tokens/s", "over our plain", "same text", right=3)
    for row in rows:
        same = f"{row.identical}/{row.prompts}"
        table.add_row(row.name, f"{row.tokens_per_second:.1f}", f"{row.over_plain:.2f}", same)
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}"
