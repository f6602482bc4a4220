"""Printing of the benchmark of many requests at once."""

from collections import Counter
from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from drafttree.interfaces.console import make_console, make_table
from drafttree.measure.interval import Interval
from drafttree_lab.load.batch import BatchBench
from drafttree_lab.load.batch_row import BatchRow
from drafttree_lab.load.batch_ways import ALONE, FIXED

RATIOS = "tokens per second in the steady state: ratios over the turns, with 95 % intervals (Student's t on logarithms)"
DRAFTS = "speculative: k nodes per request and round; v to h0 in target passes of plain decoding at this batch"
SPEEDS = "tokens per second of all requests together: in the steady state / end to end"
NONE = "-"
TERMS = ("v", "c", "delta", "h", "h0")
SHOWN = 10
"""Differing texts that are listed at most."""


def show_batch(result: BatchBench) -> None:
    """Ratios, what was drafted and speeds by batch size and what was compared."""
    console = make_console()
    for title, table in {RATIOS: _ratios(result), DRAFTS: _drafts(result), SPEEDS: _speeds(result)}.items():
        console.print(Text(title), table, "", sep="\n", soft_wrap=True)
    for line in _notes(result):
        console.print(Text(line), soft_wrap=True)


def _ratios(result: BatchBench) -> Table:
    columns = ["batch", "turns", "plain/s", "spec/plain", "end to end", "best fixed", "spec/best fixed"]
    table = make_table(*columns, "spec/transformers", "plain/transformers", "plain/one by one", right=10)
    for row in result.rows:
        speed = row.speeds.get("plain")
        others = (row.over_best_fixed, row.over_transformers, row.plain_over_transformers, row.plain_over_one_by_one)
        table.add_row(
            str(row.size),
            str(row.turns),
            f"{speed:.1f}" if speed else NONE,
            _ratio(row.over_plain),
            _ratio(row.over_plain_end_to_end),
            (row.best_fixed or NONE).removeprefix(FIXED),
            *map(_ratio, others),
        )
    return table


def _drafts(result: BatchBench) -> Table:
    table = make_table("batch", "k", "drafted", "tau", "tau expected", "gain predicted", *TERMS, "R law", right=11)
    for row in result.rows:
        gain = f"{row.predicted_gain:.2f}" if row.predicted_gain else NONE
        law = [f"{getattr(row.law, term):.2f}" for term in TERMS] if row.law else [NONE] * len(TERMS)
        shape = [f"{row.drafted:.1f}", f"{row.drafting:.0%}", f"{row.tau:.2f}", f"{row.expected_tau:.2f}"]
        table.add_row(str(row.size), *shape, gain, *law, f"{row.speedup:.2f}" if row.speedup else NONE)
    return table


def _speeds(result: BatchBench) -> Table:
    ways = list(dict.fromkeys(way for row in result.rows for way in row.end_to_end))
    table = make_table("batch", *ways, right=len(ways))
    for row in result.rows:
        table.add_row(str(row.size), *(_speed(row, way) for way in ways))
    return table


def _speed(row: BatchRow, way: str) -> str:
    if way not in row.end_to_end:
        return ""
    steady = f"{row.speeds[way]:.1f}" if way in row.speeds else NONE
    return f"{steady} / {row.end_to_end[way]:.1f}"


def _ratio(ratio: Interval | None) -> str:
    if ratio is None:
        return NONE
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f}"
    return f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"


def _notes(result: BatchBench) -> Iterator[str]:
    yield f"{result.target}, {result.threads} threads"
    yield f"steady state: rounds of a full batch in which no prompt is read; {NONE} where there were none"
    if any(row.best_fixed for row in result.rows):
        yield "the best fixed budget is the one that was fastest in these very turns"
    if result.alone is not None:
        yield (
            f"one by one: plain decoding, without a batch, of the first {ALONE} prompts of each turn at {result.alone};"
            " as its tokens per second do not depend on the batch, it is run there alone, and elsewhere has no interval"
        )
    if result.drafter_failures:
        yield f"the drafter FAILED in {result.drafter_failures} rounds, which went on without drafts; the log says why"
    if result.transformers:
        yield f"transformers: {result.transformers}"
    largest = max(row.size for row in result.rows)
    if largest > result.prompts:
        yield f"{result.prompts} different prompts: larger batches hold some of them more than once"
    yield from _texts(result)


def _texts(result: BatchBench) -> Iterator[str]:
    """How many texts are plain decoding's, and those that are not."""
    ties = sum(each.tie for each in result.differences)
    same, wrong = result.texts - len(result.differences), len(result.differences) - ties
    said = f"texts: {same} of {result.texts} are plain decoding's token for token"
    yield f"{said}, {ties} differ by a tie, {wrong} DIFFER" if result.differences else said
    for each in sorted(result.differences, key=lambda each: each.tie)[:SHOWN]:
        where = f"batch {each.size}, turn {each.turn}, prompt {each.prompt}, token {each.position}"
        yield f"  {each.way}: {where}: best logits {each.gap:.2e} apart{' (tie)' if each.tie else ''}"
    if len(result.differences) > SHOWN:
        counted = Counter(each.way for each in result.differences)
        yield f"  in all: {', '.join(f'{way} {count}' for way, count in counted.items())}"
