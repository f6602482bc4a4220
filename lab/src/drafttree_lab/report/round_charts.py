"""Figures of single rounds and texts: scatter of rounds, heat map of ranks, boxes by set, strips of tokens."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drafttree_lab.replay.summary import ResultSummary
from drafttree_lab.report.chart_style import INK, add_legend, color, panel_grid, published_line, set_ticks

PANELS = 2
"""Panels in a row."""
PANEL = (4.2, 3.2)
"""Inches of one."""
ACCEPTED, ADDED = color(2), color(1)
DARK = 0.4
"""Share below which a cell of a heat map is dark."""
MOST_PARTED = 160
"""Tokens of a strip up to which each is drawn apart from the next."""


def scatter(summary: ResultSummary, _axis: str) -> Figure:
    """Rounds by draft passes and committed tokens, as large as there are many, with their means."""

    def panel(axes: Axes, name: str, points: Any) -> None:
        _draw_rounds(axes, points)
        for metric, mark in (("delta", axes.axvline), ("tau", axes.axhline)):
            if (paper := _published(summary, name, metric)) is not None:
                mark(paper, color=color(1), linestyle="--")

    figure = _panels(summary.points, panel, share=True)
    shown: dict[str, Artist] = {
        "rounds, area by their number": Line2D([], [], marker="o", linestyle="", alpha=0.55, color=color(0)),
        "their mean": Line2D([], [], marker="x", linestyle="", color=INK, markeredgewidth=2),
        "as many tokens as passes": Line2D([], [], linestyle=":", color=INK),
    }
    models = [each.model for each in summary.entries if each.published is not None and each.model]
    add_legend(figure, shown | published_line(models, color(1)))
    return figure


def _draw_rounds(axes: Axes, points: Sequence[tuple[int, int, int]]) -> None:
    """Draft passes, tokens and number of rounds as discs."""
    passes, committed, counts = zip(*points, strict=True)
    total = sum(counts)
    axes.scatter(passes, committed, s=[700 * count / total for count in counts], alpha=0.55, color=color(0))
    means = [sum(map(math.prod, zip(own, counts, strict=True))) / total for own in (passes, committed)]
    axes.plot(*means, "x", color=INK, markersize=9, markeredgewidth=2)
    axes.axline((1, 1), slope=1, color=INK, linestyle=":", linewidth=0.8)
    axes.set(xlabel="draft passes of a round", ylabel="tokens of a round")
    axes.margins(0.12)


def heatmap(summary: ResultSummary, _axis: str) -> Figure:
    """The share of rounds that accepted a node of each rank on each level, in per cent."""
    return _panels(summary.points, _draw_ranks)


def _draw_ranks(axes: Axes, _name: str, rows: Sequence[Sequence[float]]) -> None:
    ranks, levels = range(1, len(rows[0]) + 1), range(1, len(rows) + 1)
    edges = [[0.5, *(place + 0.5 for place in own)] for own in (ranks, levels)]
    axes.pcolormesh(*edges, rows, cmap="viridis", norm=PowerNorm(0.5, 0.0, 1.0))
    for level, rank in product(levels, ranks):
        share = rows[level - 1][rank - 1]
        text = f"{100 * share:.0f}" if share >= 0.005 else ("·" if share else "")
        ink = "white" if share < DARK else "black"
        axes.text(rank, level, text, ha="center", va="center", fontsize=8, color=ink)
    axes.set_xticks(ranks, [*map(str, ranks[:-1]), f"{ranks[-1]}+"])
    axes.set_yticks(levels)
    axes.invert_yaxis()
    axes.set(xlabel="rank among its siblings; in the cells % of all rounds", ylabel="level")


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
