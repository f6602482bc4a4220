"""The plot of the benchmark of many requests at once: tokens per second and ratios, by batch size."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from drafttree.core.errors import InputError
from drafttree.evaluation.estimate import RatioEstimate
from drafttree_lab.load.batch import BatchBench
from drafttree_lab.load.batch_row import BatchRow
from drafttree_lab.load.batch_ways import ONE_BY_ONE
from drafttree_lab.report.chart import INK, MARKERS, STYLE, add_legend, color, panel_grid

PANEL = (5.5, 4.2)
"""Inches."""
RATIOS = {
    "speculative / plain": "over_plain",
    "speculative / best fixed budget": "over_best_fixed",
    "speculative / transformers": "over_transformers",
}
SPEED_LABEL = "tokens per second, steady state"
RATIO_LABEL = "ratio, 95 % interval over turns"


def write_plot(result: BatchBench, path: Path) -> None:
    """Draw the speeds of all ways of decoding, and what speculation gains, into a file.

    Raises:
        InputError: the file cannot be written.
    """
    with mpl.rc_context(STYLE):
        figure, ((speeds, ratios),) = panel_grid(1, 2, PANEL)
        series = _draw_speeds(speeds, result.rows)
        _draw_ratios(ratios, result.rows)
        add_legend(figure, series)
        try:
            figure.savefig(path, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}; name another with -o") from None


def _draw_speeds(axes: Axes, rows: Sequence[BatchRow]) -> Mapping[str, Artist]:
    """A line for every way of decoding; the one that has no batch is a level."""
    series: dict[str, Artist] = {}
    for index, way in enumerate(dict.fromkeys(way for row in rows for way in row.speeds)):
        points = [(row.size, row.speeds[way]) for row in rows if way in row.speeds]
        if way == ONE_BY_ONE:
            series[way] = axes.axhline(points[0][1], linestyle=":", color=INK)
        else:
            series[way] = _line(axes, index, points)
    _scale(axes, [row.size for row in rows], SPEED_LABEL)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    return series


def _draw_ratios(axes: Axes, rows: Sequence[BatchRow]) -> None:
    """Each ratio with its interval as a band, and a line where both are equally fast."""
    axes.axhline(1.0, color=INK, linewidth=0.7, alpha=0.5)
    top = 1.0
    for index, (label, name) in enumerate(RATIOS.items()):
        found = {row.size: ratio for row in rows if (ratio := getattr(row, name))}
        if found:
            _line(axes, index, [(size, ratio.mean) for size, ratio in found.items()], label)
            _band(axes, index, found)
            top = max(top, *(ratio.mean for ratio in found.values()))
    _scale(axes, [row.size for row in rows], RATIO_LABEL)
    axes.set_ylim(0, 1.3 * top)  # the intervals of a few turns may be much wider than what they are of
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def _line(axes: Axes, index: int, points: Sequence[tuple[int, float]], label: str | None = None) -> Artist:
    xs, ys = zip(*points, strict=True)
    marker = MARKERS[index % len(MARKERS)]
    return axes.plot(xs, ys, marker=marker, markersize=4, color=color(index), label=label)[0]


def _band(axes: Axes, index: int, found: Mapping[int, RatioEstimate]) -> None:
    """The intervals where there are any."""
    ends = {size: (each.low, each.high) for size, each in found.items() if each.low is not None}
    if ends:
        low, high = zip(*ends.values(), strict=True)
        axes.fill_between(list(ends), low, high, alpha=0.12, linewidth=0, color=color(index))


def _scale(axes: Axes, sizes: Sequence[int], label: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, map(str, sizes))
    axes.set_xticks([], minor=True)
    axes.set_xlabel("requests at once (batch size)")
    axes.set_ylabel(label)
