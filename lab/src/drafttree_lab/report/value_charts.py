"""Figures of a result's values: bars by set, and lines along an axis, with intervals and the paper's numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.summary import Entry, ResultSummary
from drafttree_lab.report.chart_style import (
    INK,
    MARKERS,
    add_legend,
    color,
    panel_grid,
    published_line,
    set_ticks,
)
from drafttree_lab.report.tables import UNITS, column

BARS, LINE = (8.5, 2.2), (4.2, 2.4)
"""Inches of a panel."""
ONE_LINE = 25
"""Letters of a metric from which on it takes two lines."""
LOG_SPAN = 16
"""The last value of an axis over its first from which on its scale is logarithmic."""


def bars(summary: ResultSummary, axis: str) -> Figure:
    """A panel for every measured metric: bars by method and column, the paper's numbers dashed over them."""
    metrics = _metrics(summary)
    figure, grid = panel_grid(len(metrics), 1, BARS, sharex=True)
    columns = list(dict.fromkeys(column(each) for each in summary.entries if each.measured))
    shown: dict[str, Artist] = {}
    for (axes,), (metric, entries) in zip(grid, metrics.items(), strict=True):
        own = [each for each in entries if column(each) in columns]
        shown |= _bars(axes, own, columns, list(_methods(summary)))
        axes.set_ylabel(_unit(metric))
        _mark_plain(axes, metric)
    set_ticks(grid[-1][0], columns)
    grid[-1][0].set_xlabel(axis)
    add_legend(figure, shown | published_line(_models(summary)))
    return figure


def lines(summary: ResultSummary, axis: str) -> Figure:
    """A panel for every measured metric and place: lines by method, the paper's numbers dashed."""
    metrics = _metrics(summary)
    scale = Scale.of(summary.entries)
    panels = list(dict.fromkeys(scale.panel(each) for each in summary.entries if each.measured))
    figure, grid = panel_grid(len(metrics), len(panels), LINE, sharex=True, sharey="row")
    shown: dict[str, Artist] = {}
    for row, metric in zip(grid, metrics, strict=True):
        row[0].set_ylabel(_unit(metric))
        for axes, panel in zip(row, panels, strict=True):
            own = [each for each in metrics[metric] if scale.panel(each) == panel]
            shown |= _lines(axes, own, scale, _methods(summary))
            _mark_plain(axes, metric)
    for top, bottom, panel in zip(grid[0], grid[-1], panels, strict=True):
        top.set_title(panel)
        scale.apply(bottom, axis)
    add_legend(figure, shown | published_line(_models(summary)))
    return figure


@dataclass(frozen=True)
class Scale:
    """The horizontal axis of lines: numbers lie at themselves, in order; other values side by side as they come.

    Attributes:
        names: names of the values, in order.
        numeric: whether all are numbers.
        of_policies: whether the axis varies policies, whose methods have its value behind an @, not a setting.
    """

    names: list[str]
    numeric: bool
    of_policies: bool

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> "Scale":
        """The scale of the entries of a result."""
        of_policies = any("@" in each.method for each in entries)
        names = list(dict.fromkeys(value for each in entries if (value := _value(each, of_policies))))
        numeric = all(map(_is_number, names))
        return cls(sorted(names, key=float) if numeric else names, numeric, of_policies)

    def places(self, entries: Sequence[Entry]) -> list[tuple[float, Entry]]:
        """The entries that have a value, with where it lies, from left to right."""
        named = [(value, each) for each in entries if (value := _value(each, self.of_policies))]
        found = [(float(name) if self.numeric else self.names.index(name), each) for name, each in named]
        return sorted(found, key=lambda place: place[0])

    def panel(self, entry: Entry) -> str:
        """What the panel of an entry is of: set, temperature, and the value of a setting beside policies."""
        varied = entry.value == entry.temperature
        parts = [entry.set, f"T = {entry.temperature:g}" if entry.temperature and not varied else ""]
        return ", ".join(filter(None, [*parts, str(entry.value or "") if self.of_policies else ""]))

    def apply(self, axes: Axes, name: str) -> None:
        """Name the horizontal axis and its values."""
        axes.set_xlabel(name)
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


def _errors(value: Value) -> list[list[float]] | None:
    """The interval below and above the mean, as error bars have it; None without one."""
    if value.low is None or value.high is None:
        return None
    return [[max(value.mean - value.low, 0.0)], [max(value.high - value.mean, 0.0)]]


def _lines(axes: Axes, entries: Sequence[Entry], scale: Scale, methods: Mapping[str, int]) -> dict[str, Artist]:
    shown: dict[str, Artist] = {}
    for method, index in methods.items():
        own = [each for each in entries if _method(each) == method]
        along = scale.places(own)
        if measured := [(x, each.measured) for x, each in along if each.measured]:
            shown[method] = _line(axes, measured, index)
        elif level := next((each.measured for each in own if each.measured), None):
            shown[method] = axes.axhline(level.mean, linestyle=":", color=color(index))
        paper = [(x, each.published) for x, each in along if each.published is not None]
        axes.plot([x for x, _ in paper], [y for _, y in paper], linestyle="--", marker=".", color=color(index))
    return shown


def _line(axes: Axes, points: Sequence[tuple[float, Value]], index: int) -> Artist:
    """A line through the means, and a band of the intervals, where there are any."""
    xs = [x for x, _ in points]
    ends = [(value.low, value.high) for _, value in points]
    low, high = ([float("nan") if end is None else end for end in own] for own in zip(*ends, strict=True))
    axes.fill_between(xs, low, high, alpha=0.12, linewidth=0, color=color(index))
    marker = MARKERS[index % len(MARKERS)]
    return axes.plot(xs, [value.mean for _, value in points], marker=marker, markersize=4, color=color(index))[0]


def _metrics(summary: ResultSummary) -> dict[str, list[Entry]]:
    """The entries of each metric that was measured, on the sets on which it was."""
    found: dict[str, list[Entry]] = {each.metric: [] for each in summary.entries if each.measured}
    sets = {each.set for each in summary.entries if each.measured}
    for each in summary.entries:
        if each.metric in found and each.set in sets:
            found[each.metric].append(each)
    return found


def _methods(summary: ResultSummary) -> dict[str, int]:
    """Methods with their numbers, which choose their colours."""
    return {name: index for index, name in enumerate(dict.fromkeys(map(_method, summary.entries)))}


def _models(summary: ResultSummary) -> list[str]:
    entries = [each for own in _metrics(summary).values() for each in own]
    return [each.model for each in entries if each.model and each.published is not None]


def _method(entry: Entry) -> str:
    return entry.method.partition("@")[0]


def _value(entry: Entry, of_policies: bool) -> str:
    """The value of the axis, empty for a method that does not vary."""
    if of_policies:
        return entry.method.partition("@")[2]
    return "" if entry.value is None else str(entry.value)


def _unit(metric: str) -> str:
    """A metric in words, on two lines where it is long."""
    name = UNITS[metric]
    return name if len(name) < ONE_LINE else name.replace(", ", ",\n").replace(" over ", "\nover ")


def _mark_plain(axes: Axes, metric: str) -> None:
    """Show where plain decoding's speed lies."""
    if metric == "speedup":
        axes.axhline(1.0, color=INK, linewidth=0.7, alpha=0.5)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True
