"""Shows draft trees in the terminal while a text is written."""

import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule as Line
from rich.text import Text
from rich.tree import Tree

from drafttree.evaluation.trace import Outcome, TracedNode, TracedRound, Tracer
from drafttree.interfaces.console import make_console
from drafttree.interfaces.trace_display import ACCEPTED, BONUS, REJECTED

STYLES = {
    Outcome.ROOT: "bold",
    Outcome.ACCEPTED: f"bold {ACCEPTED}",
    Outcome.REJECTED: REJECTED,
    Outcome.UNREACHED: "dim",
    Outcome.BONUS: f"bold {BONUS}",
}
GROWING = "cyan"
TEXT_ROWS, OTHER_ROWS = 5, 4
"""Rows of the text above the tree, and of other lines besides the tree."""


def show_live(tracer: Tracer, pace: float) -> None:
    """Write a text, and show the tree of each round.

    Args:
        tracer: the tracer of the text.
        pace: seconds per round; the tree grows for half of them, then its verdict is shown.
    """
    console = make_console()
    text = Text(tracer.prompt, style="dim")
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for number, turn in enumerate(tracer.run(), start=1):
            *level_pictures, judged_picture = frames(turn, console.height - TEXT_ROWS - OTHER_ROWS)
            for picture in level_pictures:
                live.update(_screen(text, number, turn, picture, console), refresh=True)
                time.sleep(pace / 2 / len(level_pictures))
            text.append_text(written(turn))
            live.update(_screen(text, number, turn, judged_picture, console), refresh=True)
            time.sleep(pace / 2)


def _screen(text: Text, number: int, turn: TracedRound, picture: RenderableType, console: Console) -> Group:
    """A screen with the end of the text, a line about the round, and its tree."""
    head = Line(f"round {number}: {turn.size - 1} drafted", align="left", style="dim")
    last_rows = Text("\n").join(text.wrap(console, console.width)[-TEXT_ROWS:])
    return Group(last_rows, head, picture)


def frames(turn: TracedRound, rows: int) -> Iterator[RenderableType]:
    """Yield pictures of a round's tree: level by level, then with its verdict; at most `rows` nodes each."""
    visible_nodes = most_probable(turn, max(rows, 3))
    for depth in range(1, 1 + max(turn.nodes[node].depth for node in visible_nodes)):
        yield drawn(turn, [node for node in visible_nodes if turn.nodes[node].depth <= depth], judged=False)
    cut_counts = ", ".join(f"{rule} {count:,}" for rule, count in turn.cut.items())
    hidden_count = turn.size - len(visible_nodes)
    notes = [f"{len(turn.path) - 1} accepted", *([f"{hidden_count} more nodes"] if hidden_count else [])]
    notes += [f"candidates cut: {cut_counts}"] if cut_counts else []
    yield Group(drawn(turn, visible_nodes, judged=True), Text("; ".join(notes), style="dim"))


def most_probable(turn: TracedRound, count: int) -> list[int]:
    """Up to `count` nodes in breadth-first order: the accepted path, and those with the most probable paths."""
    paths: list[float] = []
    for node in turn.nodes[: turn.size]:
        paths.append(1.0 if node.parent < 0 else paths[node.parent] * (node.draft or 0.0))
    ranked_nodes = sorted(range(turn.size), key=lambda node: (node not in turn.path, -paths[node], node))
    return sorted(ranked_nodes[: max(count, len(turn.path))])


def drawn(turn: TracedRound, shown: list[int], *, judged: bool) -> Tree:
    """A picture of some nodes of a round's tree.

    Args:
        turn: the round.
        shown: the nodes, which include their parents.
        judged: whether to show the verdict, with the bonus token.
    """
    branches = {0: Tree(_label(turn.nodes[0], judged), guide_style="dim")}
    for node in shown[1:]:
        traced_node = turn.nodes[node]
        branches[node] = branches[traced_node.parent].add(_label(traced_node, judged))
    if judged:
        branches[turn.path[-1]].add(_label(turn.bonus, judged))
    return branches[0]


def written(turn: TracedRound) -> Text:
    """The text that a round adds, in colours."""
    tokens = [*(turn.nodes[node] for node in turn.path[1:]), turn.bonus][: turn.committed]
    return Text.assemble(*((node.text, f"not dim {STYLES[node.outcome]}") for node in tokens))


def _label(node: TracedNode, judged: bool) -> Text:
    node_text = node.text.replace("\n", "\u23ce").replace("\t", "\u21e5").strip(" ") or "\u2423"
    label = Text(node_text, style=STYLES[node.outcome] if judged else GROWING)
    if node.draft is not None:
        label.append(f"  draft {node.draft:.2f}", style="not bold blue")
    if judged and node.target is not None:
        label.append(f"  target {node.target:.2f}", style="not bold magenta")
    return label
