"""The look of the report's figures: colours that the page can change, sizes, a grid of panels and one legend."""

from collections.abc import Mapping, Sequence
from typing import Any

from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from drafttree_lab.report.notation import model_name

INK = "#123456"
"""Stands for the colour of the page's text, which replaces it in the SVG."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#a8428a", "#b07a00", "#2aa1c9", "#6b7280")
"""After Okabe and Ito, told apart by colour-blind readers too; the page has others for dark ground."""
MARKERS = "osD^vPX"
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "drafttree",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
WIDTH = 8.5
"""Inches of a figure, less than which none has."""
POINTS = 72 * WIDTH
LETTER = 5.2
"""Pixels of a letter, as matplotlib counts them."""


def color(index: int) -> str:
    """Of a series."""
    return COLORS[index % len(COLORS)]


def panel_grid(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, list[list[Axes]]]:
    """A figure of panels.

    Args:
        rows: rows of panels.
        columns: columns of panels.
        size: inches of a panel, width and height.
        options: options of `subplots`.
    """
    width = max(WIDTH, size[0] * columns)
    figure = Figure(figsize=(width, size[1] * rows + 0.6), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def add_legend(figure: Figure, series: Mapping[str, Artist]) -> None:
    """One legend above all panels, in as many columns as fit."""
    if series:
        longest = max(map(len, series))
        columns = max(1, min(len(series), int(POINTS / (6 * longest + 45))))
        figure.legend(list(series.values()), list(series), loc="outside upper left", ncols=columns)


def published_line(models: Sequence[str], color: str = INK) -> dict[str, Artist]:
    """The legend's entry for the paper's numbers, with the models they are of; empty without any."""
    found = ", ".join(map(model_name, dict.fromkeys(models)))
    return {f"published ({found})": Line2D([], [], color=color, linestyle="--")} if found else {}


def set_ticks(axes: Axes, labels: Sequence[str], most: int = 12) -> None:
    """Names at 0, 1, 2 and so on, some of them left out where there are many, and turned where they are long."""
    step = -(-len(labels) // most)
    places = range(0, len(labels), step)
    shown = [labels[place].replace(", ", ",").replace(",", "\n") for place in places]
    axes.set_xticks(list(places), shown)
    if sum(max(map(len, label.split("\n"))) + 2 for label in shown) * LETTER > axes.bbox.width:
        axes.tick_params(axis="x", rotation=25)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")
