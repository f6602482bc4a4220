"""Printing of the bench beside other programs."""

from collections.abc import Iterator

from drafttree.interfaces.console import make_console, make_table
from drafttree.measure.interval import Interval
from drafttree_lab.display.serve import waiting
from drafttree_lab.experiment.methods import MethodRow
from drafttree_lab.load.serve import SHARES
from drafttree_lab.peers.bench import CONTEXT, PeerBench, SpeedRow


def show_peers(result: PeerBench) -> None:
    """Speeds and texts by dtype, passes by rows."""
    console = make_console()
    for dtype in dict.fromkeys(row.dtype for row in result.rows):
        columns = [
            "tokens/s",
            "over the baseline",
            "95 %",
            "R",
            "95 %",
            "tau",
            "equal tokens",
            "equal texts",
            "ties",
            "gap",
        ]
        table = make_table(dtype, *columns, right=len(columns))
        rows = [row for row in result.rows if row.dtype == dtype]
        for row in rows:
            table.add_row(row.name, *_cells(row))
        console.print(table, "")
        for row in rows:
            if isinstance(row.speed, MethodRow) and row.speed.doubt:
                print(f"{dtype}, {row.name}: {row.speed.doubt}")
    if result.passes:
        sizes = [*result.passes[0].seconds]
        table = make_table("rows", *map(str, sizes), right=len(sizes))
        table.title = f"ms of a pass behind {CONTEXT} tokens"
        for row in result.passes:
            name = f"{row.dtype}, {row.program}"
            table.add_row(name, *(f"{seconds * 1e3:.1f}" for seconds in row.seconds.values()))
        console.print(table, "")
    for size in dict.fromkeys(row.streams for row in result.streams):
        table = make_table(f"{size} streams", "tokens/s", "first token", "next token", right=3)
        table.title = f"all together, and milliseconds waited: percentiles {', '.join(map(str, SHARES))}"
        for row in (row for row in result.streams if row.streams == size):
            table.add_row(row.name, f"{row.served.tokens_per_second:.1f}", *waiting(row.served))
        console.print(table, "")
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    print(f"{result.prompts} prompts, {result.threads} threads; {versions}")
    print(f"the baseline is {result.baseline}; R is over our plain decoding in the same dtype, and texts are compared")
    print(
        "with its texts; a tie is a first difference that the rounding of a half-precision dtype explains, and the gap"
    )
    print("is the largest distance of plain decoding's two best logits at a first difference")


def _cells(row: SpeedRow) -> Iterator[str]:
    speed, same = row.speed, row.same_text
    yield f"{speed.tokens_per_second:.1f}"
    yield from _ratio(row.over_baseline)
    if isinstance(speed, MethodRow):
        yield from ("-", "") if speed.doubt else _ratio(speed.over_plain)
        yield f"{speed.law.tau:.2f}"
    else:
        yield from (f"{speed.over_plain:.2f}", "", "")
    yield from (f"{same.share:.1%}", f"{same.equal}/{same.texts}", str(same.ties) if same.ties else "")
    yield f"{same.gap:.3f}" if same.gap is not None else ""


def _ratio(ratio: Interval) -> tuple[str, str]:
    return f"{ratio.mean:.2f}", "" if ratio.low is None else f"{ratio.low:.2f} to {ratio.high:.2f}"
