"""Printing of the benchmark of a server under load."""

from rich.text import Text

from drafttree.interfaces.console import make_console, make_table
from drafttree.measure.interval import Interval
from drafttree_lab.load.serve import SHARES, WHOLE, WITHOUT_DRAFTER, ServeBench, ServedWay

SPEEDS = (
    "tokens per second of all clients together, and ratios over the turns with 95 % intervals (Student's t on logs)"
)
ROUNDING = (
    "In bfloat16 and float16, rounding decides between two tokens that are nearly tied, and so texts differ; "
    "--dtype float32 shows whether that is all."
)
SECOND = {WITHOUT_DRAFTER: "those without a drafter", WHOLE: "those of prompts read whole"}
WAITS = f"milliseconds that clients waited: percentiles {', '.join(map(str, SHARES))}"


def show_serve(result: ServeBench) -> None:
    """Speeds and ratios by the number of clients, then how long they waited, then whether texts are the same."""
    console = make_console()
    ways = [*result.rows[0].ways]
    speeds = make_table("clients", *ways, "ratio", right=3)
    waits = make_table("clients", "server", "first token", "next token", "prompts cached", right=3)
    for row in result.rows:
        found = [f"{row.ways[way].tokens_per_second:.1f}" for way in ways]
        speeds.add_row(str(row.at_once), *found, _ratio(row.ratio))
        for way, figures in row.ways.items():
            waits.add_row(str(row.at_once), way, *waiting(figures), f"{figures.cached:.0%}")
    console.print(Text(SPEEDS), speeds, "", Text(WAITS), waits, "", sep="\n", soft_wrap=True)
    same, texts = (sum(getattr(row, name) for row in result.rows) for name in ("same", "texts"))
    console.print(f"{result.turns} turns of each; {same} of {texts} texts are {SECOND[ways[1]]}", soft_wrap=True)
    if same < texts:
        console.print(ROUNDING, soft_wrap=True)


def waiting(way: ServedWay) -> list[str]:
    """Milliseconds to the first token, and from token to token, by percentile."""
    return [" / ".join(f"{1000 * each[share]:.1f}" for share in each) for each in (way.first_token, way.next_token)]


def _ratio(ratio: Interval) -> str:
    return f"{ratio.mean:.2f}" if ratio.low is None else f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
