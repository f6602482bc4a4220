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
from drafttree.interfaces.trace_display import ACCEPTED, BONUS, REJECTED, dropped_candidates

STYLES = {
    Outcome.ROOT: "bold",
    Outcome.ACCEPTED: f"bold {ACCEPTED}",
    Outcome.REJECTED: REJECTED,
    Outcome.UNREACHED: "dim",
    Outcome.BONUS: f"bold {BONUS}",
}
GROWING = "cyan"
TEXT_ROWS = 5
"""Rows of the text above the tree."""
OTHER_ROWS = 4
"""Rows of the screen that show neither the text nor the tree."""


def show_live(tracer: Tracer, pace: float) -> None:
    """Write a text, and show the tree of each round.

    Args:
        tracer: the tracer of the text.
        pace: seconds per round; the tree grows for half of them, then its verdict is shown.
    """
    console = make_console()
    text = Text(tracer.prompt, style="dim")
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for number, traced_round in enumerate(tracer.run(), start=1):
            *level_pictures, judged_picture = frames(traced_round, console.height - TEXT_ROWS - OTHER_ROWS)
            for picture in level_pictures:
                live.update(_screen(text, number, traced_round, picture, console), refresh=True)
                time.sleep(pace / 2 / len(level_pictures))
            text.append_text(text_of(traced_round))
            live.update(_screen(text, number, traced_round, judged_picture, console), refresh=True)
            time.sleep(pace / 2)


def _screen(text: Text, number: int, traced_round: TracedRound, picture: RenderableType, console: Console) -> Group:
    """A screen: the end of the text, a line about the round, and the picture of its tree."""
    headline = Line(f"round {number}: {traced_round.size - 1} drafted", align="left", style="dim")
    last_rows = Text("\n").join(text.wrap(console, console.width)[-TEXT_ROWS:])
    return Group(last_rows, headline, picture)


def frames(traced_round: TracedRound, rows: int) -> Iterator[RenderableType]:
    """Yield pictures of a round's tree: level by level, then with its verdict; at most `rows` nodes each."""
    visible_nodes = most_probable(traced_round, max(rows, 3))
    max_depth = max(traced_round.nodes[node].depth for node in visible_nodes)
    for depth in range(1, max_depth + 1):
        grown_nodes = [node for node in visible_nodes if traced_round.nodes[node].depth <= depth]
        yield tree_picture(traced_round, grown_nodes, judged=False)
    notes = [f"{len(traced_round.path) - 1} accepted"]
    hidden_count = traced_round.size - len(visible_nodes)
    if hidden_count:
        notes.append(f"{hidden_count} more nodes")
    if dropped := dropped_candidates(traced_round.cut):
        notes.append(dropped)
    yield Group(tree_picture(traced_round, visible_nodes, judged=True), Text("; ".join(notes), style="dim"))


def most_probable(traced_round: TracedRound, count: int) -> list[int]:
    """The accepted path and the nodes with the most probable paths, up to `count` nodes, in breadth-first order."""
    path = traced_round.path
    chances: list[float] = []
    for node in traced_round.nodes[: traced_round.size]:
        chances.append(1.0 if node.parent < 0 else chances[node.parent] * (node.draft or 0.0))
    ranked_nodes = sorted(range(traced_round.size), key=lambda node: (node not in path, -chances[node], node))
    return sorted(ranked_nodes[: max(count, len(path))])


def tree_picture(traced_round: TracedRound, visible_nodes: list[int], *, judged: bool) -> Tree:
    """A picture of some nodes of a round's tree.

    Args:
        traced_round: the round.
        visible_nodes: the nodes, which include their parents.
        judged: whether to show the verdict, with the bonus token.
    """
    branches = {0: Tree(_label(traced_round.nodes[0], judged), guide_style="dim")}
    for node in visible_nodes[1:]:
        traced_node = traced_round.nodes[node]
        branches[node] = branches[traced_node.parent].add(_label(traced_node, judged))
    if judged:
        branches[traced_round.path[-1]].add(_label(traced_round.bonus, judged))
    return branches[0]


def text_of(traced_round: TracedRound) -> Text:
    """The text of a round, coloured by the outcome of its tokens."""
    accepted_nodes = [traced_round.nodes[node] for node in traced_round.path[1:]]
    committed_nodes = [*accepted_nodes, traced_round.bonus][: traced_round.committed]
    return Text.assemble(*((node.text, f"not dim {STYLES[node.outcome]}") for node in committed_nodes))


def _label(node: TracedNode, judged: bool) -> Text:
    node_text = node.text.replace("\n", "\u23ce").replace("\t", "\u21e5").strip(" ") or "\u2423"
    label = Text(node_text, style=STYLES[node.outcome] if judged else GROWING)
    if node.draft is not None:
        label.append(f"  draft {node.draft:.2f}", style="not bold blue")
    if judged and node.target is not None:
        label.append(f"  target {node.target:.2f}", style="not bold magenta")
    return label
