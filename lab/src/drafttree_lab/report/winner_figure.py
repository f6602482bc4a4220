"""The figure of who wins where: a panel for every curve v(n), wide and narrow, for light and for dark ground."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import log
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from drafttree.core.errors import ConfigError, InputError
from drafttree_lab.report.chart import COLORS, STYLE
from drafttree_lab.winner_map.cost_grid import DRAFT_COSTS, GPU, SLOPES
from drafttree_lab.winner_map.families import PLAIN, families
from drafttree_lab.winner_map.pairs import PlacedPair
from drafttree_lab.winner_map.winner_map import AGREEMENTS, MapPoint, WinnerMap

SHORT = {"fixed tree": "fixed"}
"""Names of families that are too long for a cell."""
PIXELS = 72
"""Of a figure in an inch: it is drawn in the size in which a page shows it."""


@dataclass(frozen=True)
class Ground:
    """The colours of a page.

    Attributes:
        ending: what the file's name ends with.
        paper: of the ground.
        ink: of text and lines.
        strength: how much of a family's colour its cells have, the rest is ground.
    """

    ending: str
    paper: str
    ink: str
    strength: float

    def cell(self, color: str) -> tuple[float, float, float]:
        """A family's colour on this ground, pale enough that text can be read on it."""
        pairs = zip(to_rgb(color), to_rgb(self.paper), strict=True)
        red, green, blue = (self.strength * own + (1 - self.strength) * ground for own, ground in pairs)
        return red, green, blue


@dataclass(frozen=True)
class Format:
    """How wide a figure is, and how its panels stand.

    Attributes:
        ending: what the file's name ends with.
        width: pixels.
        columns: of panels.
        row: pixels of a row of cells.
        font: size of text in pixels.
        keys: columns of the legend and of the list of pairs.
    """

    ending: str
    width: int
    columns: int
    row: int
    font: float
    keys: tuple[int, int]


GROUNDS = (Ground("", "#ffffff", "#1f2328", 0.42), Ground("-dark", "#0d1117", "#e6edf3", 0.55))
FORMATS = (Format("", 1280, 2, 60, 14, (8, 3)), Format("-narrow", 420, 1, 52, 11, (4, 1)))


def check_output(path: Path) -> Path:
    """The file of the wide figure on light ground.

    Raises:
        ConfigError: it is no SVG file.
    """
    if path.suffix != ".svg":
        raise ConfigError(f"-o {str(path)!r} is no .svg file; the map is drawn as SVG, wide and narrow, light and dark")
    return path


def write_figures(found: WinnerMap, path: Path) -> list[Path]:
    """Draw the figure in every format and for every ground; `map.svg` has `map-narrow-dark.svg` and others beside it.

    Args:
        found: what is drawn.
        path: file of the wide figure for light ground.

    Returns:
        The files.

    Raises:
        InputError: a file cannot be written.
    """
    written = []
    for form, ground in product(FORMATS, GROUNDS):
        each = path.with_stem(f"{path.stem}{form.ending}{ground.ending}")
        with mpl.rc_context(_style(form, ground)):
            figure = draw(found, form, ground)
            try:
                figure.savefig(each, facecolor=ground.paper, metadata={"Date": None})
            except OSError as error:
                raise InputError(f"{each}: cannot be written: {error.strerror}; name another with -o") from None
        written.append(each)
    return written


def draw(found: WinnerMap, form: Format, ground: Ground) -> Figure:
    """The figure in one format, for one ground."""
    rows = -(-len(SLOPES) // form.columns)
    pairs = -(-len(found.pairs) // form.keys[1])
    legend = -(-len(_colors()) // form.keys[0])
    panel = form.row * (len(AGREEMENTS) + 1.9)
    foot = form.font * (1.7 * (legend + pairs) + 3.2)
    size = form.width / PIXELS, (panel * rows + foot) / PIXELS
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, form.columns, squeeze=False)
    for axes, slope in zip(grid.flat, SLOPES, strict=True):
        pairs = found.pairs if slope == GPU else []
        _draw_panel(axes, slope, found.of_slope(slope), _marks(pairs), ground)
        _draw_pairs(axes, pairs, form, ground)
    patches = [Patch(facecolor=ground.cell(color), edgecolor=ground.ink, linewidth=0.5) for color in _colors().values()]
    figure.legend(patches, [*_colors()], loc="outside upper left", ncols=form.keys[0], columnspacing=1.2)
    _list_pairs(figure, found.pairs, form, ground)
    return figure


def _draw_panel(
    axes: Axes, slope: float, points: Sequence[MapPoint], marks: Sequence[tuple[float, float]], ground: Ground
) -> None:
    """Cells with the fastest family, its R, and that of `auto`, bold where it is greater. Marks stay visible."""
    for point in points:
        x, y = DRAFT_COSTS.index(point.costs.draft), AGREEMENTS.index(point.agreement)
        color = ground.cell(_colors()[point.winner])
        axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=color, edgecolor=ground.paper, linewidth=1.5))
        inside = [left - x for left, low in marks if abs(left - x) <= 0.5 and abs(low - y) <= 0.6]
        side = 0 if not inside else 1 if sum(inside) < 0 else -1
        look: dict[str, Any] = {"ha": {0: "center", 1: "right", -1: "left"}[side], "va": "center"}
        place = x + 0.46 * side
        axes.text(place, y + 0.27, SHORT.get(point.winner, point.winner), fontsize="small", **look)
        axes.text(place, y, f"{point.best:.2f}", weight="bold", **look)
        if point.auto is not None:
            weight = "bold" if point.auto > point.best else "normal"
            axes.text(place, y - 0.28, f"auto {point.auto:.2f}", fontsize="small", weight=weight, **look)
    axes.set_title(
        f"v(n) = 1 + {slope:g} (n - 1): {SLOPES[slope]}" if slope else f"v(n) = 1: {SLOPES[slope]}", loc="left"
    )
    axes.set(xlim=(-0.5, len(DRAFT_COSTS) - 0.5), ylim=(-0.5, len(AGREEMENTS) - 0.5))
    axes.set_xticks(range(len(DRAFT_COSTS)), [f"{each:g}" for each in DRAFT_COSTS])
    axes.set_yticks(range(len(AGREEMENTS)), [f"{each:g}" for each in AGREEMENTS])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="c, cost of a draft pass", ylabel="agreement of drafter and target")


def _marks(pairs: Sequence[PlacedPair]) -> list[tuple[float, float]]:
    """Where the pairs stand on a panel whose cells are of one size."""
    costs = [log(cost) for cost in DRAFT_COSTS]
    return [(_between(costs, log(each.pair.draft_cost)), _between(AGREEMENTS, each.agreement)) for each in pairs]


def _draw_pairs(axes: Axes, pairs: Sequence[PlacedPair], form: Format, ground: Ground) -> None:
    """Numbered marks; those of sampled texts are square."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "color": ground.paper, "fontsize": form.font * 0.75}
    for number, (each, (x, y)) in enumerate(zip(pairs, _marks(pairs), strict=True), start=1):
        shape = "square,pad=0.18" if each.pair.sampled else "circle,pad=0.18"
        box = {"boxstyle": shape, "facecolor": ground.ink, "edgecolor": ground.paper, "linewidth": 1}
        axes.text(x, y, str(number), bbox=box, zorder=3, **look)


def _list_pairs(figure: Figure, pairs: Sequence[PlacedPair], form: Format, ground: Ground) -> None:
    """What the numbers stand for, below the panels."""
    if not pairs:
        return
    names = [f"{number}  {_name(each)}" for number, each in enumerate(pairs, start=1)]
    blank: list[Any] = [Patch(alpha=0) for _ in names]
    title = "Pairs of models of the papers, on the curve of a GPU; squares: sampled at temperature 1"
    if form.columns == 1:
        title = title.replace("; ", ";\n")
    legend = figure.legend(
        blank, names, loc="outside lower left", ncols=form.keys[1], title=title, handlelength=0, handletextpad=0
    )
    legend.set_alignment("left")
    legend.get_title().set(color=ground.ink, fontsize=form.font)


def _name(each: PlacedPair) -> str:
    paper = {"talon": "TALON", "dynatree-v2": "DynaTree", "traversal": "Traversal"}.get(
        each.pair.paper, each.pair.paper
    )
    beyond = f", or {each.beyond}" if each.beyond else ""
    return f"{each.pair.name} ({paper}): {each.agreement:.2f}{beyond}, c {each.pair.draft_cost:.2f}"


def _colors() -> Mapping[str, str]:
    """Colours by family, those that win beside each other far apart; plain decoding is grey."""
    blue, vermilion, green, purple, ochre, sky, grey = COLORS
    return {PLAIN: grey, **dict(zip(families(), (blue, sky, green, purple, ochre, vermilion), strict=True))}


def _between(ticks: Sequence[float], value: float) -> float:
    """The place of a value on an axis whose ticks are evenly spaced, whatever their distance; at most at its edge."""
    steps = list(pairwise(ticks)) or [(ticks[0], ticks[0] + 1)]
    inside = (place for place, (_, high) in enumerate(steps) if value <= high)
    place = next(inside, len(steps) - 1)
    low, high = steps[place]
    return min(max(place + (value - low) / (high - low), -0.5), len(ticks) - 0.5)


def _style(form: Format, ground: Ground) -> Any:
    colors = dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor"), ground.ink
    )
    sizes = dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize", "legend.fontsize"), form.font)
    fonts = ["system-ui", "Helvetica", "Arial", "DejaVu Sans", "sans-serif"]
    return {**STYLE, **colors, **sizes, "font.sans-serif": fonts, "axes.facecolor": ground.paper}
