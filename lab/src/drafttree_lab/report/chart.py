"""The figures of a report: SVG drawn by matplotlib, whose text, axes and series take the colours of the page."""

import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import product
from typing import Any

import matplotlib as mpl
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drafttree_lab.replay.paper import UNITS
from drafttree_lab.replay.results import Entry, ResultSummary
from drafttree_lab.report.notation import COLORS, anchor, model_name

INK = "#123456"
"""Stands for the colour of the page's text, which replaces it in the SVG."""
MARKERS = "osD^vPX"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "drafttree",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}
WIDTH = 8.5
"""Inches of a figure, less than which none has."""
LETTER = 5.2
"""Pixels of a letter, as matplotlib counts them."""
ONE_LINE = 25
"""Letters of a metric from which on it takes two lines."""
LOG_SPAN = 16
"""The last value of an axis over its first from which on its scale is logarithmic."""
MOST_PARTED = 160
"""Tokens of a strip up to which each is drawn apart from the next."""
Drawing = tuple[Figure, dict[str, Artist]]
"""A figure with the series of its legend."""


def draw(summary: ResultSummary, axis: str = "") -> str:
    """The figure of a result as an SVG element; empty where it is a table, or nothing was measured.

    Args:
        summary: the summary of the result.
        axis: the name of what it varies.
    """
    of_values = {"bars": _bars, "lines": _lines}
    of_rounds = {"scatter": _scatter, "heatmap": _heatmap}
    of_rounds |= {"boxes": _boxes, "tokens": _tokens}
    with mpl.rc_context(STYLE):
        if summary.figure in of_values and any(entry.measured for entry in summary.entries):
            figure, series = of_values[summary.figure](summary, axis)
        elif summary.figure in of_rounds and summary.points and all(summary.points.values()):
            figure, series = of_rounds[summary.figure](summary)
        else:
            return ""
        add_legend(figure, series)
        file = io.StringIO()
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    return _inline(file.getvalue(), summary)


def color(index: int) -> str:
    """Of a series."""
    return COLORS[index % len(COLORS)]


def panel_grid(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """A figure of rows and columns of panels, each so many inches wide and high, with the options of `subplots`."""
    width = max(WIDTH, size[0] * columns)
    figure = Figure(figsize=(width, size[1] * rows + 0.6), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def add_legend(figure: Figure, series: Mapping[str, Artist]) -> None:
    """One legend above all panels, in as many columns as fit."""
    if series:
        columns = int(72 * WIDTH / (6 * max(map(len, series)) + 45))
        columns = max(1, min(len(series), columns))
        figure.legend(list(series.values()), list(series), loc="outside upper left", ncols=columns)


def _bars(summary: ResultSummary, axis: str) -> Drawing:
    """A panel for every measured metric: bars by method and column, the paper's numbers dashed over them."""
    metrics = _metrics(summary)
    methods = _methods(summary)
    figure, grid = panel_grid(len(metrics), 1, (WIDTH, 2.2), sharex=True)
    columns = list(dict.fromkeys(entry.column for entry in summary.entries if entry.measured))
    series = dict[str, Artist]()
    width = 0.8 / len(methods)
    for (axes,), (metric, entries) in zip(grid, metrics.items(), strict=True):
        for entry in entries:
            if entry.column not in columns:
                continue
            index = methods[_method(entry)]
            middle = columns.index(entry.column) + (index - (len(methods) - 1) / 2) * width
            if value := entry.measured:
                low, high = (value.mean if end is None else end for end in (value.low, value.high))
                errors = (
                    [[max(value.mean - low, 0.0)], [max(high - value.mean, 0.0)]] if value.low is not None else None
                )
                style = {"color": color(index), "error_kw": {"ecolor": INK, "elinewidth": 0.8}}
                series[entry.method] = axes.bar(middle, value.mean, 0.9 * width, yerr=errors, **style)[0]
            if entry.published is not None:
                ends = middle - width / 2, middle + width / 2
                axes.hlines(entry.published, *ends, color=INK, linestyle="--", linewidth=1.4)
        _name_metric(axes, metric)
    _set_ticks(grid[-1][0], columns)
    grid[-1][0].set_xlabel(axis)
    return figure, series | _published_line(entry for metric_entries in metrics.values() for entry in metric_entries)


def _lines(summary: ResultSummary, axis: str) -> Drawing:
    """A panel for every measured metric and place: lines by method, the paper's numbers dashed.

    Values of the axis that are numbers lie at themselves, in order; others side by side as they come. Where the axis
    varies policies, a method has its value behind an @; where a setting, the entry has it.
    """
    metrics = _metrics(summary)
    methods = _methods(summary)
    of_policies = any("@" in entry.method for entry in summary.entries)

    def value(entry: Entry) -> str:
        coordinate = entry.method.partition("@")[2] if of_policies else entry.value
        return "" if coordinate is None else str(coordinate)

    def place(entry: Entry) -> str:
        is_varied = entry.value == entry.temperature
        warmth = f"T = {entry.temperature:g}" if entry.temperature and not is_varied else ""
        return ", ".join(filter(None, [entry.set, warmth, str(entry.value or "") if of_policies else ""]))

    names = list(dict.fromkeys(name for entry in summary.entries if (name := value(entry))))
    numeric = all(map(_is_number, names))
    names = sorted(names, key=float) if numeric else names
    panels = list(dict.fromkeys(place(entry) for entry in summary.entries if entry.measured))
    figure, grid = panel_grid(len(metrics), len(panels), (4.2, 2.4), sharex=True, sharey="row")
    series: dict[str, Artist] = {}
    for row, (metric, entries) in zip(grid, metrics.items(), strict=True):
        for axes, panel in zip(row, panels, strict=True):
            for method, index in methods.items():
                method_entries = [entry for entry in entries if place(entry) == panel and _method(entry) == method]
                labelled_entries = [(value(entry), entry) for entry in method_entries if value(entry)]
                axis_points = [
                    (float(name) if numeric else names.index(name), entry) for name, entry in labelled_entries
                ]
                axis_points = sorted(axis_points, key=lambda point: point[0])
                if measured := [(x, entry.measured) for x, entry in axis_points if entry.measured]:
                    xs = [x for x, _ in measured]
                    nan = float("nan")
                    low = [nan if estimate.low is None else estimate.low for _, estimate in measured]
                    high = [nan if estimate.high is None else estimate.high for _, estimate in measured]
                    axes.fill_between(xs, low, high, alpha=0.12, linewidth=0, color=color(index))
                    style: Any = {"marker": MARKERS[index % len(MARKERS)], "markersize": 4, "color": color(index)}
                    series[method] = axes.plot(xs, [estimate.mean for _, estimate in measured], **style)[0]
                elif level := next((entry.measured for entry in method_entries if entry.measured), None):
                    series[method] = axes.axhline(level.mean, linestyle=":", color=color(index))
                paper = [(x, entry.published) for x, entry in axis_points if entry.published is not None]
                axes.plot([x for x, _ in paper], [y for _, y in paper], linestyle="--", marker=".", color=color(index))
            _name_metric(axes, metric, named=axes is row[0])
    for top, bottom, panel in zip(grid[0], grid[-1], panels, strict=True):
        top.set_title(panel)
        bottom.set_xlabel(axis)
        if not numeric:
            _set_ticks(bottom, names, most=8)
        elif names:
            ticks = [float(name) for name in names]
            if ticks[0] > 0 and ticks[-1] / ticks[0] >= LOG_SPAN:
                bottom.set_xscale("log")
            bottom.set_xticks(ticks, names)
            bottom.set_xticks([], minor=True)
    return figure, series | _published_line(entry for metric_entries in metrics.values() for entry in metric_entries)


def _scatter(summary: ResultSummary) -> Drawing:
    """Rounds by draft passes and committed tokens, discs as large as there are many, with their means."""
    figure, panels = _panels(summary, sharex=True, sharey=True)
    for axes, name, points in panels:
        passes, committed, counts = zip(*points, strict=True)
        total = sum(counts)
        axes.scatter(passes, committed, s=[700 * count / total for count in counts], alpha=0.55, color=color(0))
        means = [
            sum(map(math.prod, zip(coordinates, counts, strict=True))) / total for coordinates in (passes, committed)
        ]
        axes.plot(*means, "x", color=INK, markersize=9, markeredgewidth=2)
        axes.axline((1, 1), slope=1, color=INK, linestyle=":", linewidth=0.8)
        axes.set(xlabel="draft passes of a round", ylabel="tokens of a round")
        axes.margins(0.12)
        for metric, mark in (("delta", axes.axvline), ("tau", axes.axhline)):
            published = (entry.published for entry in summary.entries if (entry.method, entry.metric) == (name, metric))
            if (paper := next((number for number in published if number is not None), None)) is not None:
                mark(paper, color=color(1), linestyle="--")
    series: dict[str, Artist] = {
        "rounds, area by their number": Line2D([], [], marker="o", linestyle="", alpha=0.55, color=color(0)),
        "their mean": Line2D([], [], marker="x", linestyle="", color=INK, markeredgewidth=2),
        "as many tokens as passes": Line2D([], [], linestyle=":", color=INK),
    }
    return figure, series | _published_line(summary.entries, color(1))


def _heatmap(summary: ResultSummary) -> Drawing:
    """The share of rounds that accepted a node of each rank on each level, in per cent."""
    figure, panels = _panels(summary)
    for axes, _, rows in panels:
        ranks, levels = range(1, len(rows[0]) + 1), range(1, len(rows) + 1)
        edges = [[0.5, *(index + 0.5 for index in indices)] for indices in (ranks, levels)]
        axes.pcolormesh(*edges, rows, cmap="viridis", norm=PowerNorm(0.5, 0.0, 1.0))
        for level, rank in product(levels, ranks):
            share = rows[level - 1][rank - 1]
            text = f"{100 * share:.0f}" if share >= 0.005 else ("·" if share else "")
            ink = "white" if share < 0.4 else "black"  # viridis is dark below
            axes.text(rank, level, text, ha="center", va="center", fontsize=8, color=ink)
        axes.set_xticks(ranks, [*map(str, ranks[:-1]), f"{ranks[-1]}+"])
        axes.set_yticks(levels)
        axes.invert_yaxis()
        axes.set(xlabel="rank among its siblings; in the cells % of all rounds", ylabel="level")
    return figure, {}


def _boxes(summary: ResultSummary) -> Drawing:
    """Tokens per round of every text, by set."""
    points = summary.points
    figure, grid = panel_grid(len(points), 1, (WIDTH, 2.6), sharey=True)
    ink = {"color": INK}
    box = {"facecolor": color(0), "alpha": 0.35, "edgecolor": INK}
    styles: Any = {"boxprops": box, "medianprops": ink | {"linewidth": 2}, "whiskerprops": ink, "capprops": ink}
    for (axes,), (name, values) in zip(grid, points.items(), strict=True):
        positions = range(len(values))
        axes.boxplot(
            list(values.values()), positions=positions, patch_artist=True, showfliers=False, widths=0.5, **styles
        )
        for position, taus in zip(positions, values.values(), strict=True):
            axes.scatter([position] * len(taus), taus, s=14, color=color(0), zorder=3, linewidths=0)
        _set_ticks(axes, [f"{set_name} ({len(taus)})" for set_name, taus in values.items()])
        axes.set(title=name, ylabel="tau of a text,\ntokens per target pass")
    return figure, {}


def _tokens(summary: ResultSummary) -> Drawing:
    """A text as a strip: drafted and accepted tokens, and those that the target added."""
    points = summary.points
    figure, ((axes,),) = panel_grid(1, 1, (WIDTH, 0.7 + 0.45 * len(points)))
    names = []
    for row, (name, accepted) in enumerate(points.items()):
        flags = [flag for count in accepted for flag in [True] * count + [False]]
        width = 0.86 if len(flags) <= MOST_PARTED else 1.0
        colors = [color(2) if flag else color(1) for flag in flags]
        axes.broken_barh([(position, width) for position in range(len(flags))], (row - 0.35, 0.7), facecolors=colors)
        names.append(f"{name}\n{100 * sum(flags) / max(len(flags), 1):.0f} % drafted")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.01)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("token of the text")
    return figure, {"drafted and accepted": Patch(color=color(2)), "added by the target": Patch(color=color(1))}


def _panels(summary: ResultSummary, **options: Any) -> tuple[Figure, list[tuple[Axes, str, Any]]]:
    """A figure with a panel for the points of every method, two in a row."""
    count = len(summary.points)
    figure, grid = panel_grid(math.ceil(count / 2), min(count, 2), (4.2, 3.2), **options)
    panel_axes = [axes for row in grid for axes in row]
    for axes in panel_axes[count:]:
        axes.set_visible(False)
    panels = [(axes, name, points) for axes, (name, points) in zip(panel_axes, summary.points.items(), strict=False)]
    for axes, name, _ in panels:
        axes.set_title(name)
    return figure, panels


def _metrics(summary: ResultSummary) -> dict[str, list[Entry]]:
    """The entries of each metric that was measured, on the sets on which it was."""
    sets = {entry.set for entry in summary.entries if entry.measured}
    metrics = dict.fromkeys(entry.metric for entry in summary.entries if entry.measured)
    return {
        name: [entry for entry in summary.entries if entry.metric == name and entry.set in sets] for name in metrics
    }


def _methods(summary: ResultSummary) -> dict[str, int]:
    """Methods with their numbers, which choose their colours."""
    return {name: index for index, name in enumerate(dict.fromkeys(map(_method, summary.entries)))}


def _method(entry: Entry) -> str:
    return entry.method.partition("@")[0]


def _published_line(entries: Iterable[Entry], color: str = INK) -> dict[str, Artist]:
    """The legend's entry for the paper's numbers, with the models they are of; empty without any."""
    models = dict.fromkeys(entry.model for entry in entries if entry.model and entry.published is not None)
    model_names = ", ".join(map(model_name, models))
    return {f"published ({model_names})": Line2D([], [], color=color, linestyle="--")} if model_names else {}


def _name_metric(axes: Axes, metric: str, *, named: bool = True) -> None:
    """Name the upright axis, on two lines where the name is long, and show where plain decoding's speed lies."""
    if named:
        name = UNITS[metric]
        axes.set_ylabel(name if len(name) < ONE_LINE else name.replace(", ", ",\n").replace(" over ", "\nover "))
    if metric == "speedup":
        axes.axhline(1.0, color=INK, linewidth=0.7, alpha=0.5)


def _set_ticks(axes: Axes, labels: Sequence[str], most: int = 12) -> None:
    """Names at 0, 1, 2 and so on, some of them left out where there are many, and turned where they are long."""
    positions = range(0, len(labels), -(-len(labels) // most))
    tick_labels = [labels[position].replace(", ", ",").replace(",", "\n") for position in positions]
    axes.set_xticks(list(positions), tick_labels)
    if sum(max(map(len, label.split("\n"))) + 2 for label in tick_labels) * LETTER > axes.bbox.width:
        axes.tick_params(axis="x", rotation=25)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def _inline(text: str, summary: ResultSummary) -> str:
    """The SVG element alone, with a label, ids of its own, and the page's colours."""
    element = text[text.index("<svg") :].replace(INK, "currentColor")
    for index, hex_color in enumerate(COLORS):
        element = element.replace(hex_color, f"var(--series-{index})")
    element = re.sub("<style.*?</style>", "", element, flags=re.DOTALL)
    prefix = anchor(summary.id)
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", element)
    element = re.sub("<svg [^>]*>", lambda tag: re.sub(' (width|height)="[^"]*"', "", tag[0]), element, count=1)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(summary.title)}" ', 1)
