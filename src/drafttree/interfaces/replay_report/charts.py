"""Figures as inline SVG, drawn by matplotlib; text and axes take the colour of the page."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from cycler import cycler

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drafttree.evaluation.replay.summary import Entry, ResultSummary

INK = "#123456"
"""Stands for the colour of the page's text, which replaces it in the SVG."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a")
"""Okabe and Ito's colours, told apart by colour-blind readers too."""
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "drafttree",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
WIDTH, HEIGHT = 8.5, 3.4
"""Inches of a figure; of one with several panels the height of a row of them."""
PANELS = 3
"""Panels in a row."""


def draw(summary: ResultSummary) -> str:
    """The figure of a result as an SVG element; empty where it is a table, or nothing was measured."""
    maker = MAKERS.get(summary.figure or "")
    if maker is None or not any(entry.measured for entry in summary.entries):
        return ""
    with mpl.rc_context(STYLE):
        figure = maker(summary)
        if figure is None:
            return ""
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        plt.close(figure)
    return _inline(file.getvalue(), summary)


def _inline(text: str, summary: ResultSummary) -> str:
    """The SVG element alone, with a label, ids of its own, and the page's colour."""
    element = text[text.index("<svg") :].replace(INK, "currentColor")
    prefix = summary.id.replace("/", "-")
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", element)
    element = re.sub("<svg [^>]*>", lambda tag: re.sub(' (width|height)="[^"]*"', "", tag[0]), element, count=1)
    return element.replace("<svg ", f'<svg role="img" aria-label="{_escape(summary.title)}" ', 1)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def _bars(summary: ResultSummary) -> Figure | None:
    """Bars per method and column, the paper's numbers as strokes on them."""
    entries = _first_metric(summary)
    columns, methods = (list(dict.fromkeys(key(entry) for entry in entries)) for key in (_column, _method))
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT))
    width = 0.8 / max(len(methods), 1)
    for place, method in enumerate(methods):
        own = {_column(entry): entry for entry in entries if entry.method == method}
        xs = [index + (place - (len(methods) - 1) / 2) * width for index in range(len(columns))]
        axes.bar(xs, [_mean(own.get(name)) for name in columns], 0.9 * width, label=method)
        published = [(x, own[name].published) for x, name in zip(xs, columns, strict=True) if name in own]
        marks = [(x, value) for x, value in published if value is not None]
        axes.scatter([x for x, _ in marks], [value for _, value in marks], marker="_", s=120, color=INK, zorder=3)
    axes.set_xticks(range(len(columns)), columns, rotation=0 if len(columns) < 5 else 20, ha="center")
    _label(axes, entries[0].metric)
    return figure


def _lines(summary: ResultSummary) -> Figure | None:
    """A metric along the axis; the paper's numbers dashed."""
    series: dict[str, list[tuple[Any, float, float | None]]] = {}
    entries = _first_metric(summary)
    sets = dict.fromkeys((entry.set, entry.temperature) for entry in entries)
    for entry in entries:
        method, _, value = entry.method.partition("@")
        at = entry.value if entry.value is not None else value
        name = method if len(sets) == 1 else f"{method}, {entry.set}"
        if entry.measured and at != "":
            series.setdefault(name, []).append((_number(at), entry.measured.mean, entry.published))
    if not series:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, HEIGHT))
    for index, (name, points) in enumerate(series.items()):
        color = COLORS[index % len(COLORS)]
        axes.plot([x for x, _, _ in points], [y for _, y, _ in points], marker="o", color=color, label=name)
        paper = [(x, y) for x, _, y in points if y is not None]
        axes.plot([x for x, _ in paper], [y for _, y in paper], linestyle="--", color=color, alpha=0.7)
    _label(axes, entries[0].metric)
    return figure


def _scatter(summary: ResultSummary) -> Figure | None:
    """Rounds by draft passes and committed tokens, as large as there are many."""

    def panel(axes: Axes, points: Any) -> None:
        total = sum(count for _, _, count in points)
        sizes = [600 * count / total for _, _, count in points]
        axes.scatter([x for x, _, _ in points], [y for _, y, _ in points], s=sizes, alpha=0.6)
        axes.set_xlabel("draft passes")
        axes.set_ylabel("tokens")

    return _panels(summary.points, panel)


def _heatmap(summary: ResultSummary) -> Figure | None:
    """The share of rounds that accepted a node of each rank on each level."""

    def panel(axes: Axes, rows: Any) -> None:
        axes.imshow(rows or [[0.0]], cmap="viridis", aspect="auto", extent=(0.5, 10.5, len(rows) + 0.5, 0.5))
        axes.set_xlabel("rank among its siblings")
        axes.set_ylabel("level")

    return _panels(summary.points, panel)


def _boxes(summary: ResultSummary) -> Figure | None:
    """Tokens per round of every text, by set."""

    def panel(axes: Axes, values: Mapping[str, Sequence[float]]) -> None:
        axes.boxplot(list(values.values()), tick_labels=list(values), showfliers=True)
        axes.tick_params(axis="x", rotation=30)
        axes.set_ylabel("tau")

    return _panels(summary.points, panel)


def _tokens(summary: ResultSummary) -> Figure | None:
    """A text as a strip: drafted and accepted tokens, and those that the target added."""
    figure, axes = plt.subplots(figsize=(WIDTH, 0.6 + 0.4 * max(len(summary.points), 1)))
    for row, accepted in enumerate(summary.points.values()):
        flags = [flag for count in accepted for flag in [True] * count + [False]]  # type: ignore[attr-defined]
        axes.barh([row] * len(flags), 1, left=range(len(flags)), color=[COLORS[2 if flag else 1] for flag in flags])
    axes.set_yticks(range(len(summary.points)), list(summary.points))
    axes.invert_yaxis()
    axes.set_xlabel("token; green was drafted and accepted, red added by the target")
    return figure


def _panels(points: Mapping[str, object], draw_panel: Callable[[Axes, Any], None]) -> Figure | None:
    """A panel for every method."""
    if not points:
        return None
    rows = math.ceil(len(points) / PANELS)
    across = min(len(points), PANELS)
    figure, grid = plt.subplots(rows, across, figsize=(WIDTH, HEIGHT * rows), squeeze=False)
    for axes, (name, own) in zip(grid.flat, points.items(), strict=False):
        draw_panel(axes, own)
        axes.set_title(name, fontsize=10)
    for axes in list(grid.flat)[len(points) :]:
        axes.set_visible(False)
    return figure


def _first_metric(summary: ResultSummary) -> list[Entry]:
    return [entry for entry in summary.entries if entry.metric == summary.entries[0].metric]


def _column(entry: Entry) -> str:
    return entry.set if entry.value is None else f"{entry.set}, {entry.value}"


def _method(entry: Entry) -> str:
    return entry.method


def _mean(entry: Entry | None) -> float:
    return entry.measured.mean if entry and entry.measured else 0.0


def _number(value: object) -> Any:
    try:
        return float(str(value))
    except ValueError:
        return str(value)


def _label(axes: Axes, metric: str) -> None:
    axes.set_ylabel(metric)
    axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 1))


MAKERS: dict[str, Callable[[ResultSummary], Figure | None]] = {
    "bars": _bars,
    "lines": _lines,
    "scatter": _scatter,
    "heatmap": _heatmap,
    "boxes": _boxes,
    "tokens": _tokens,
}
