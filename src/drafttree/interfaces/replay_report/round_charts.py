"""Figures of single rounds and texts: scatter of rounds, heat map of ranks, boxes by set, strips of tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drafttree.evaluation.replay.summary import ResultSummary
from drafttree.interfaces.replay_report.chart_style import INK, add_legend, color, panel_grid, published_line, set_ticks

PANELS = 2
"""Panels in a row."""
PANEL = (4.2, 3.2)
"""Inches of one."""
ACCEPTED, ADDED = color(2), color(1)
MOST_PARTED = 160
"""Tokens of a strip up to which each is drawn apart from the next."""


def scatter(summary: ResultSummary, _axis: str) -> Figure:
    """Rounds by draft passes and committed tokens, as large as there are many, with their means."""

    def panel(axes: Axes, name: str, points: Any) -> None:
        total = sum(count for _, _, count in points)
        sizes = [700 * count / total for _, _, count in points]
        axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], s=sizes, alpha=0.55, color=color(0))
        means = [sum(point[place] * point[2] for point in points) / total for place in (0, 1)]
        axes.plot(*means, "x", color=INK, markersize=9, markeredgewidth=2)
        for metric, mark in (("delta", axes.axvline), ("tau", axes.axhline)):
            if (paper := _published(summary, name, metric)) is not None:
                mark(paper, color=color(1), linestyle="--")
        axes.axline((1, 1), slope=1, color=INK, linestyle=":", linewidth=0.8)
        axes.set(xlabel="draft passes of a round", ylabel="tokens of a round")
        axes.margins(0.12)

    figure = _panels(summary.points, panel, share=True)
    shown: dict[str, Artist] = {
        "rounds, area by their number": Line2D([], [], marker="o", linestyle="", alpha=0.55, color=color(0)),
        "their mean": Line2D([], [], marker="x", linestyle="", color=INK, markeredgewidth=2),
        "as many tokens as passes": Line2D([], [], linestyle=":", color=INK),
    }
    models = [each.model for each in summary.entries if each.published is not None and each.model]
    add_legend(figure, shown | published_line(models, color(1)))
    return figure


def heatmap(summary: ResultSummary, _axis: str) -> Figure:
    """The share of rounds that accepted a node of each rank on each level, in per cent."""

    def panel(axes: Axes, _name: str, rows: Sequence[Sequence[float]]) -> None:
        ranks = max(map(len, rows))
        edges = [rank + 0.5 for rank in range(ranks + 1)], [level + 0.5 for level in range(len(rows) + 1)]
        axes.pcolormesh(*edges, rows, cmap="viridis", norm=PowerNorm(0.5, 0.0, 1.0))
        for level, row in enumerate(rows, 1):
            for rank, share in enumerate(row, 1):
                ink = "white" if share < 0.4 else "black"
                text = f"{100 * share:.0f}" if share >= 0.005 else ("·" if share else "")
                axes.text(rank, level, text, ha="center", va="center", fontsize=8, color=ink)
        ticks = range(1, ranks + 1)
        axes.set_xticks(list(ticks), [*map(str, ticks[:-1]), f"{ranks}+"])
        axes.set_yticks(range(1, len(rows) + 1))
        axes.invert_yaxis()
        axes.set(xlabel="rank among its siblings; in the cells % of all rounds", ylabel="level")

    return _panels(summary.points, panel)


def boxes(summary: ResultSummary, _axis: str) -> Figure:
    """Tokens per round of every text, by set."""
    figure, grid = panel_grid(len(summary.points), 1, (8.5, 2.6), sharey=True)
    ink = {"color": INK}
    box = {"facecolor": color(0), "alpha": 0.35, "edgecolor": INK}
    looks: Any = {"boxprops": box, "medianprops": ink | {"linewidth": 2}, "whiskerprops": ink, "capprops": ink}
    for (axes,), (name, values) in zip(grid, _points(summary).items(), strict=True):
        places = range(len(values))
        axes.boxplot(list(values.values()), positions=places, patch_artist=True, showfliers=False, widths=0.5, **looks)
        for place, own in zip(places, values.values(), strict=True):
            axes.scatter([place] * len(own), own, s=14, color=color(0), zorder=3, linewidths=0)
        set_ticks(axes, [f"{each} ({len(own)})" for each, own in values.items()])
        axes.set(title=name, ylabel="tau of a text,\ntokens per target pass")
    return figure


def tokens(summary: ResultSummary, _axis: str) -> Figure:
    """A text as a strip: drafted and accepted tokens, and those that the target added."""
    figure, grid = panel_grid(1, 1, (8.5, 0.7 + 0.45 * len(summary.points)))
    axes = grid[0][0]
    names = []
    for row, (name, accepted) in enumerate(_points(summary).items()):
        flags = [flag for count in accepted for flag in [True] * count + [False]]
        width = 0.86 if len(flags) <= MOST_PARTED else 1.0
        colors = [ACCEPTED if flag else ADDED for flag in flags]
        axes.broken_barh([(place, width) for place in range(len(flags))], (row - 0.35, 0.7), facecolors=colors)
        names.append(f"{name}\n{100 * sum(flags) / max(len(flags), 1):.0f} % drafted")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.01)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("token of the text")
    add_legend(figure, {"drafted and accepted": Patch(color=ACCEPTED), "added by the target": Patch(color=ADDED)})
    return figure


def _panels(points: Mapping[str, Any], draw_panel: Callable[[Axes, str, Any], None], *, share: bool = False) -> Figure:
    """A panel for every method."""
    rows, across = math.ceil(len(points) / PANELS), min(len(points), PANELS)
    figure, grid = panel_grid(rows, across, PANEL, sharex=share, sharey=share)
    places = [axes for row in grid for axes in row]
    for axes, (name, own) in zip(places, points.items(), strict=False):
        draw_panel(axes, name, own)
        axes.set_title(name)
    for axes in places[len(points) :]:
        axes.set_visible(False)
    return figure


def _published(summary: ResultSummary, method: str, metric: str) -> float | None:
    """The paper's number of a method."""
    own = (each.published for each in summary.entries if (each.method, each.metric) == (method, metric))
    return next((value for value in own if value is not None), None)


def _points(summary: ResultSummary) -> Mapping[str, Any]:
    """By method, what `figure_data` gives for the kind of figure."""
    return summary.points
