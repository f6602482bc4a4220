"""Figures of a result's values: bars by set, and lines along an axis, with intervals and the paper's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drafttree.evaluation.replay.measured import Value
from drafttree.evaluation.replay.summary import Entry, ResultSummary
from drafttree.interfaces.replay_report.chart_style import (
    INK,
    MARKERS,
    add_legend,
    color,
    panel_grid,
    published_line,
    set_ticks,
)
from drafttree.interfaces.replay_report.tables import UNITS, column

BARS, LINE = (8.5, 2.2), (4.2, 2.4)
"""Inches of a panel."""
LOG_SPAN = 16
"""The last value of an axis over its first from which on its scale is logarithmic."""


def bars(summary: ResultSummary, axis: str) -> Figure:
    """A panel for every measured metric: bars by method and column, the paper's numbers dashed over them."""
    metrics = _metrics(summary)
    figure, grid = panel_grid(len(metrics), 1, BARS, sharex=True)
    columns = list(dict.fromkeys(column(each) for each in summary.entries if each.metric in metrics))
    shown: dict[str, Artist] = {}
    for (axes,), (metric, entries) in zip(grid, metrics.items(), strict=True):
        shown |= _bars(axes, entries, columns, list(_methods(summary)))
        axes.set_ylabel(_unit(metric))
    set_ticks(grid[-1][0], columns)
    grid[-1][0].set_xlabel(axis)
    add_legend(figure, shown | published_line(_models(summary)))
    return figure


def lines(summary: ResultSummary, axis: str) -> Figure:
    """A panel for every measured metric and place: lines by method, the paper's numbers dashed."""
    metrics = _metrics(summary)
    places = list(dict.fromkeys(map(_place, summary.entries)))
    figure, grid = panel_grid(len(metrics), len(places), LINE, sharex=True, sharey="row")
    scale = Scale.of([point for each in summary.entries if (point := _point(each)) is not None])
    shown: dict[str, Artist] = {}
    for row, (metric, entries) in zip(grid, metrics.items(), strict=True):
        row[0].set_ylabel(_unit(metric))
        for axes, place in zip(row, places, strict=True):
            shown |= _lines(axes, [each for each in entries if _place(each) == place], scale, _methods(summary))
    for axes, place in zip(grid[0], places, strict=True):
        axes.set_title(place)
    for axes in grid[-1]:
        scale.apply(axes)
        axes.set_xlabel(axis)
    add_legend(figure, shown | published_line(_models(summary)))
    return figure


@dataclass(frozen=True)
class Scale:
    """Where the values of an axis lie: numbers at themselves, in order; others side by side as they come.

    Attributes:
        names: of the values, in order.
        numeric: whether all are numbers.
    """

    names: list[str]
    numeric: bool

    @classmethod
    def of(cls, values: Sequence[str]) -> "Scale":
        """The scale of some values."""
        names = list(dict.fromkeys(values))
        numeric = all(map(_is_number, names))
        return cls(sorted(names, key=float) if numeric else names, numeric)

    def place(self, name: str) -> float:
        """Where a value lies."""
        return float(name) if self.numeric else float(self.names.index(name))

    def apply(self, axes: Axes) -> None:
        """Name the values on the horizontal axis."""
        if not self.numeric:
            set_ticks(axes, self.names, most=8)
        elif self.names:
            places = [float(name) for name in self.names]
            if places[0] > 0 and places[-1] / places[0] >= LOG_SPAN:
                axes.set_xscale("log")
            axes.set_xticks(places, self.names)
            axes.set_xticks([], minor=True)


def _bars(axes: Axes, entries: Sequence[Entry], columns: Sequence[str], methods: Sequence[str]) -> dict[str, Artist]:
    width = 0.8 / len(methods)
    shown: dict[str, Artist] = {}
    for each in entries:
        index = methods.index(each.method)
        middle = columns.index(column(each)) + (index - (len(methods) - 1) / 2) * width
        if each.measured:
            look = {"color": color(index), "error_kw": {"ecolor": INK, "elinewidth": 0.8}}
            bar = axes.bar(middle, each.measured.mean, 0.9 * width, yerr=_errors(each.measured), **look)
            shown[each.method] = bar[0]
        if each.published is not None:
            ends = middle - width / 2, middle + width / 2
            axes.hlines(each.published, *ends, color=INK, linestyle="--", linewidth=1.4)
    return shown


def _errors(value: Value) -> list[list[float]]:
    """The interval below and above the mean, as error bars have it."""
    return [[max(value.mean - value.low, 0.0)], [max(value.high - value.mean, 0.0)]]


def _lines(axes: Axes, entries: Sequence[Entry], scale: Scale, methods: Mapping[str, int]) -> dict[str, Artist]:
    shown: dict[str, Artist] = {}
    for method, index in methods.items():
        own = [each for each in entries if _method(each) == method]
        along = [(scale.place(x), each) for each in own if (x := _point(each)) is not None]
        along.sort(key=lambda at: at[0])
        if measured := [(x, each.measured) for x, each in along if each.measured]:
            shown[method] = _line(axes, measured, index)
        elif level := next((each.measured for each in own if each.measured), None):
            shown[method] = axes.axhline(level.mean, linestyle=":", color=color(index))
        paper = [(x, each.published) for x, each in along if each.published is not None]
        axes.plot([x for x, _ in paper], [y for _, y in paper], linestyle="--", marker=".", color=color(index))
    return shown


def _line(axes: Axes, points: Sequence[tuple[float, Value]], index: int) -> Artist:
    """A line through the means, and a band of the intervals."""
    xs = [x for x, _ in points]
    low, high = [value.low for _, value in points], [value.high for _, value in points]
    axes.fill_between(xs, low, high, alpha=0.12, linewidth=0, color=color(index))
    marker = MARKERS[index % len(MARKERS)]
    return axes.plot(xs, [value.mean for _, value in points], marker=marker, markersize=4, color=color(index))[0]


def _metrics(summary: ResultSummary) -> dict[str, list[Entry]]:
    """The entries of each metric that was measured."""
    measured = dict.fromkeys(each.metric for each in summary.entries if each.measured)
    return {metric: [each for each in summary.entries if each.metric == metric] for metric in measured}


def _methods(summary: ResultSummary) -> dict[str, int]:
    """Methods with their numbers, which choose their colours."""
    return {name: index for index, name in enumerate(dict.fromkeys(map(_method, summary.entries)))}


def _models(summary: ResultSummary) -> list[str]:
    metrics = _metrics(summary)
    return [each.model or "" for each in summary.entries if each.metric in metrics and each.published is not None]


def _method(entry: Entry) -> str:
    return entry.method.partition("@")[0]


def _point(entry: Entry) -> str | None:
    """The value of the axis, None for a method that does not vary."""
    _, at, value = entry.method.partition("@")
    if at:
        return value
    return None if entry.value is None else str(entry.value)


def _place(entry: Entry) -> str:
    """What a panel of lines is of: a set, temperature and value of the second axis."""
    parts = [entry.set, f"T = {entry.temperature:g}" if entry.temperature else ""]
    return ", ".join(filter(None, [*parts, str(entry.value) if "@" in entry.method and entry.value else ""]))


def _unit(metric: str) -> str:
    return UNITS.get(metric, metric).replace(", ", ",\n").replace(" over ", "\nover ")


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
