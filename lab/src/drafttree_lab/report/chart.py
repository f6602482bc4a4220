"""The figures of a report, drawn by matplotlib as SVG in the colours of the page."""

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import chain, product, zip_longest
from operator import attrgetter
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.paper import UNITS
from drafttree_lab.replay.results import Entry, ResultSummary
from drafttree_lab.report.notation import COLORS, anchor, model_name

INK = "#123456"
"""Placeholder in the SVG that is replaced by the colour of the page's text."""
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
"""Minimum width of a figure in inches."""
LETTER = 5.2
"""Approximate width of a letter in matplotlib's pixels."""
ONE_LINE = 25
"""Metric names of at least this many letters are written on two lines."""
LOG_SPAN = 16
"""An axis whose last value is at least this multiple of its first has a logarithmic scale."""
MAX_SEPARATED = 160
"""Strips of at most this many tokens have gaps between the tokens."""
Drawing = tuple[Figure, dict[str, Artist]]
"""A figure, and the artists of its legend by label."""


def draw(summary: ResultSummary, axis: str = "") -> str:
    """The figure of a result as an SVG element; empty for a table, and if nothing was measured.

    Args:
        summary: the summary of the result.
        axis: name of the parameter that varies.
    """
    of_values = {"bars": _bars, "lines": _lines}
    of_rounds = {"scatter": _scatter, "heatmap": _heatmap}
    of_rounds |= {"boxes": _boxes, "tokens": _tokens}
    with mpl.rc_context(STYLE):
        if summary.figure in of_values and any(map(attrgetter("measured"), summary.entries)):
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
    """The colour of a series."""
    return COLORS[index % len(COLORS)]


def panel_grid(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of panels.

    Args:
        rows: number of rows.
        columns: number of columns.
        size: width and height of a panel in inches.
        **options: options of `Figure.subplots`.
    """
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
    """A panel per measured metric: bars by method and column, with dashed lines at the published numbers."""
    metrics = _metrics(summary)
    methods = _methods(summary)
    columns = list(dict.fromkeys(map(attrgetter("column"), _measured_entries(summary))))
    figure, grid = panel_grid(len(metrics), 1, (WIDTH, 2.2), sharex=True)
    series = dict[str, Artist]()
    width = 0.8 / len(methods)
    for (axes,), (metric, entries) in zip(grid, metrics.items(), strict=True):
        for entry in entries:
            if entry.column in columns:
                index = methods[_method(entry)]
                middle = columns.index(entry.column) + (index - (len(methods) - 1) / 2) * width
                if entry.measured:
                    series[entry.method] = _bar(axes, entry.measured, middle, width, color(index))
                if entry.published is not None:
                    ends = middle - width / 2, middle + width / 2
                    axes.hlines(entry.published, *ends, color=INK, linestyle="--", linewidth=1.4)
        _name_metric(axes, metric)
    _set_ticks(grid[-1][0], columns)
    grid[-1][0].set_xlabel(axis)
    return figure, series | _published_line(_all_entries(metrics))


def _bar(axes: Axes, value: Value, middle: float, width: float, hex_color: str) -> Artist:
    """A bar with its interval."""
    errors = None
    if value.low is not None:
        high = value.mean if value.high is None else value.high
        errors = [[max(value.mean - value.low, 0.0)], [max(high - value.mean, 0.0)]]
    style: Any = {"color": hex_color, "error_kw": {"ecolor": INK, "elinewidth": 0.8}}
    return axes.bar(middle, value.mean, 0.9 * width, yerr=errors, **style)[0]


@dataclass(frozen=True)
class Sweep:
    """What varies in a figure of lines.

    Attributes:
        of_policies: whether policies vary; the value is then in the entry's `method`, after an @. Otherwise a setting
            varies, and the value is the entry's `value`.
        names: the values in order.
        is_numeric: whether all values are numbers.
    """

    of_policies: bool
    names: Sequence[str]
    is_numeric: bool

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "Sweep":
        """What varies in some entries."""
        sweep = cls(any("@" in entry.method for entry in entries), [], False)
        names = list(dict.fromkeys(filter(None, map(sweep.name, entries))))
        if all(map(_is_number, names)):
            return replace(sweep, names=sorted(names, key=float), is_numeric=True)
        return replace(sweep, names=names)

    def name(self, entry: Entry) -> str:
        """The value of an entry; empty where it has none."""
        value = entry.method.partition("@")[2] if self.of_policies else entry.value
        return "" if value is None else str(value)

    def panel(self, entry: Entry) -> str:
        """The title of an entry's panel: its set, temperature and setting, without what varies."""
        is_varied = entry.value == entry.temperature
        warmth = f"T = {entry.temperature:g}" if entry.temperature and not is_varied else ""
        value = str(entry.value or "") if self.of_policies else ""
        return ", ".join(filter(None, [entry.set, warmth, value]))

    def points(self, entries: Iterable[Entry]) -> list[tuple[float, Entry]]:
        """The entries with a value, each with its x position, sorted by it.

        Numbers are their own positions; other values lie at 0, 1, 2 and so on.
        """
        points = list[tuple[float, Entry]]()
        for entry in entries:
            if name := self.name(entry):
                points.append((float(name) if self.is_numeric else self.names.index(name), entry))
        return sorted(points, key=lambda point: point[0])

    def set_ticks(self, axes: Axes) -> None:
        """Name the values on the axis."""
        if not self.is_numeric:
            _set_ticks(axes, self.names, max_labels=8)
        elif self.names:
            ticks = list(map(float, self.names))
            if ticks[0] > 0 and ticks[-1] / ticks[0] >= LOG_SPAN:
                axes.set_xscale("log")
            axes.set_xticks(ticks, self.names)
            axes.set_xticks([], minor=True)


def _lines(summary: ResultSummary, axis: str) -> Drawing:
    """A row of panels per measured metric: lines by method, with the published numbers dashed."""
    metrics = _metrics(summary)
    sweep = Sweep.of(summary.entries)
    panels = list(dict.fromkeys(map(sweep.panel, _measured_entries(summary))))
    figure, grid = panel_grid(len(metrics), len(panels), (4.2, 2.4), sharex=True, sharey="row")
    series: dict[str, Artist] = {}
    for row, (metric, entries) in zip(grid, metrics.items(), strict=True):
        for axes, panel in zip(row, panels, strict=True):
            panel_entries = [entry for entry in entries if sweep.panel(entry) == panel]
            series |= _draw_panel(axes, panel_entries, sweep, _methods(summary))
            _name_metric(axes, metric, has_label=axes is row[0])
    for top, bottom, panel in zip(grid[0], grid[-1], panels, strict=True):
        top.set_title(panel)
        bottom.set_xlabel(axis)
        sweep.set_ticks(bottom)
    return figure, series | _published_line(_all_entries(metrics))


def _draw_panel(axes: Axes, entries: Sequence[Entry], sweep: Sweep, methods: Mapping[str, int]) -> dict[str, Artist]:
    """Draw the lines of all methods, and return the measured lines by method.

    Args:
        axes: the panel.
        entries: its entries.
        sweep: what varies along x.
        methods: index of each method, as `_methods` gives it.
    """
    lines: dict[str, Artist] = {}
    for method, index in methods.items():
        method_entries = [entry for entry in entries if _method(entry) == method]
        points = sweep.points(method_entries)
        measured: list[tuple[float, Value]] = []
        published: list[tuple[float, float]] = []
        for x, entry in points:
            if entry.measured:
                measured.append((x, entry.measured))
            if entry.published is not None:
                published.append((x, entry.published))
        if measured:
            lines[method] = _draw_measured(axes, measured, index)
        elif level := next((entry.measured for entry in method_entries if entry.measured), None):
            lines[method] = axes.axhline(level.mean, linestyle=":", color=color(index))
        xs, ys = zip(*published, strict=True) if published else ((), ())
        axes.plot(xs, ys, linestyle="--", marker=".", color=color(index))
    return lines


def _draw_measured(axes: Axes, points: Sequence[tuple[float, Value]], index: int) -> Artist:
    """Draw the line of a method with its intervals."""
    rows = [(x, value.low, value.mean, value.high) for x, value in points]
    xs, low, mean, high = np.array(rows, float).T  # an end that is None is not drawn
    axes.fill_between(xs, low, high, alpha=0.12, linewidth=0, color=color(index))
    style: Any = {"marker": MARKERS[index % len(MARKERS)], "markersize": 4, "color": color(index)}
    return axes.plot(xs, mean, **style)[0]


def _scatter(summary: ResultSummary) -> Drawing:
    """Rounds by draft passes and committed tokens, as discs with an area by their number, and their means."""
    figure, panels = _panels(summary, sharex=True, sharey=True)
    for axes, name, points in panels:
        passes, committed, counts = np.array(points).T
        total = counts.sum()
        axes.scatter(passes, committed, s=700 * counts / total, alpha=0.55, color=color(0))
        means = passes @ counts / total, committed @ counts / total
        axes.plot(*means, "x", color=INK, markersize=9, markeredgewidth=2)
        axes.axline((1, 1), slope=1, color=INK, linestyle=":", linewidth=0.8)
        axes.set(xlabel="draft passes of a round", ylabel="tokens of a round")
        axes.margins(0.12)
        for metric, mark in (("delta", axes.axvline), ("tau", axes.axhline)):
            published = _published_number(summary, name, metric)
            if published is not None:
                mark(published, color=color(1), linestyle="--")
    series: dict[str, Artist] = {
        "rounds, area by their number": Line2D([], [], marker="o", linestyle="", alpha=0.55, color=color(0)),
        "their mean": Line2D([], [], marker="x", linestyle="", color=INK, markeredgewidth=2),
        "as many tokens as passes": Line2D([], [], linestyle=":", color=INK),
    }
    return figure, series | _published_line(summary.entries, color(1))


def _published_number(summary: ResultSummary, method: str, metric: str) -> float | None:
    """The first number that the paper prints of a method."""
    for entry in summary.entries:
        if (entry.method, entry.metric) == (method, metric) and entry.published is not None:
            return entry.published
    return None


def _heatmap(summary: ResultSummary) -> Drawing:
    """Heat maps of the share of rounds, in per cent, that accepted a node of each rank on each level."""
    figure, panels = _panels(summary)
    for axes, _, rows in panels:
        ranks = range(1, len(rows[0]) + 1)
        levels = range(1, len(rows) + 1)
        axes.pcolormesh(_edges(ranks), _edges(levels), rows, cmap="viridis", norm=PowerNorm(0.5, 0.0, 1.0))
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


def _edges(indices: Sequence[int]) -> list[float]:
    """The edges of cells whose centres are 1, 2 and so on."""
    return [0.5, *(index + 0.5 for index in indices)]


def _boxes(summary: ResultSummary) -> Drawing:
    """A panel per method: box plots of the tokens per round of every text, by set."""
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
    """A strip per method: the first text's tokens, coloured by whether they were drafted or added by the target."""
    points = summary.points
    figure, ((axes,),) = panel_grid(1, 1, (WIDTH, 0.7 + 0.45 * len(points)))
    names = []
    for row, (name, accepted) in enumerate(points.items()):
        flags: list[bool] = []
        for count in accepted:
            flags += [True] * count + [False]
        width = 0.86 if len(flags) <= MAX_SEPARATED else 1.0
        colors = [color(2) if flag else color(1) for flag in flags]
        strips = [(position, width) for position in range(len(flags))]
        axes.broken_barh(strips, (row - 0.35, 0.7), facecolors=colors)
        names.append(f"{name}\n{100 * sum(flags) / max(len(flags), 1):.0f} % drafted")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.01)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("token of the text")
    return figure, {"drafted and accepted": Patch(color=color(2)), "added by the target": Patch(color=color(1))}


def _panels(summary: ResultSummary, **options: Any) -> tuple[Figure, list[tuple[Axes, str, Any]]]:
    """A figure with a panel per method, two in a row; of each panel its axes, method and points."""
    count = len(summary.points)
    figure, grid = panel_grid(math.ceil(count / 2), min(count, 2), (4.2, 3.2), **options)
    panels = list[tuple[Axes, str, Any]]()
    for axes, method in zip_longest(chain.from_iterable(grid), summary.points.items()):
        if method is None:
            axes.set_visible(False)
            continue
        name, points = method
        axes.set_title(name)
        panels.append((axes, name, points))
    return figure, panels


def _measured_entries(summary: ResultSummary) -> list[Entry]:
    return [entry for entry in summary.entries if entry.measured]


def _metrics(summary: ResultSummary) -> dict[str, list[Entry]]:
    """The entries of each measured metric, on sets with measured numbers."""
    measured_entries = _measured_entries(summary)
    sets = set(map(attrgetter("set"), measured_entries))
    metrics: dict[str, list[Entry]] = {entry.metric: [] for entry in measured_entries}
    for entry in summary.entries:
        if entry.metric in metrics and entry.set in sets:
            metrics[entry.metric].append(entry)
    return metrics


def _all_entries(metrics: Mapping[str, Sequence[Entry]]) -> Iterator[Entry]:
    return chain.from_iterable(metrics.values())


def _methods(summary: ResultSummary) -> dict[str, int]:
    """The index of each method, which determines its colour."""
    return {name: index for index, name in enumerate(dict.fromkeys(map(_method, summary.entries)))}


def _method(entry: Entry) -> str:
    return entry.method.partition("@")[0]


def _published_line(entries: Iterable[Entry], color: str = INK) -> dict[str, Artist]:
    """The legend's entry for published numbers, with their models; empty if there are none."""
    models = dict.fromkeys(entry.model for entry in entries if entry.model and entry.published is not None)
    model_names = ", ".join(map(model_name, models))
    return {f"published ({model_names})": Line2D([], [], color=color, linestyle="--")} if model_names else {}


def _name_metric(axes: Axes, metric: str, *, has_label: bool = True) -> None:
    """Label the y axis with a metric, on two lines if the name is long. For speed-ups, draw a line at 1."""
    if has_label:
        name = UNITS[metric]
        axes.set_ylabel(name if len(name) < ONE_LINE else name.replace(", ", ",\n").replace(" over ", "\nover "))
    if metric == "speedup":
        axes.axhline(1.0, color=INK, linewidth=0.7, alpha=0.5)


def _set_ticks(axes: Axes, labels: Sequence[str], max_labels: int = 12) -> None:
    """Label the x positions 0, 1, 2 and so on; every k-th if there are many, rotated if they are long."""
    positions = range(0, len(labels), -(-len(labels) // max_labels))
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
    """The SVG element of a file for embedding in a page: with an ARIA label, unique ids and the page's colours."""
    element = text[text.index("<svg") :].replace(INK, "currentColor")
    for index, hex_color in enumerate(COLORS):
        element = element.replace(hex_color, f"var(--series-{index})")
    element = re.sub("<style.*?</style>", "", element, flags=re.DOTALL)
    prefix = anchor(summary.id)
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", element)
    element = re.sub("<svg [^>]*>", lambda tag: re.sub(' (width|height)="[^"]*"', "", tag[0]), element, count=1)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(summary.title)}" ', 1)
