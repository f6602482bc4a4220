"""The figure of who wins where: one SVG with panels for every curve v(n) and confidence, for light and dark themes.

It follows the reader's theme where a page shows it as an image, too. Curves stand below each other and cells name
families by their first letters, so that a phone is wide enough.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import log

from drafttree_lab.graded import CALIBRATED, CONFIDENCES
from drafttree_lab.report.notation import COLORS, template
from drafttree_lab.winner_map.published import PLAIN, Pair, families
from drafttree_lab.winner_map.winner_map import AGREEMENTS, DRAFT_COSTS, GPU, SLOPES, WinnerMap

PAPERS = {"talon": "TALON", "dynatree-v2": "DynaTree", "traversal": "Traversal"}


def draw(found: WinnerMap) -> str:
    """The figure as text of an SVG file.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    blue, vermilion, green, purple, ochre, sky, grey = COLORS
    family_colors = (blue, sky, green, purple, ochre, vermilion)  # neighbours on the map differ
    slopes = [(slope, description, found.of_slope(slope)) for slope, description in SLOPES.items()]
    return template("winner_map.svg").render(
        panels=slopes,
        ground=[point for point in found.of_slope(GPU) if point.confidence == CALIBRATED],
        marks=list(map(_mark, found.pairs)),
        pairs=list(map(_name, found.pairs)),
        colors={PLAIN: grey, **dict(zip(families(), family_colors, strict=True))},
        confidences=[*CONFIDENCES],
        costs=DRAFT_COSTS,
        agreements=AGREEMENTS,
    )


def _mark(pair: Pair) -> tuple[float, float, Pair]:
    """A pair with its place among the columns, whose costs are evenly spaced by their logarithms, and the rows."""
    column = _between(list(map(log, DRAFT_COSTS)), log(pair.draft_cost))
    return column, _between(AGREEMENTS, pair.agreement), pair


def _name(each: Pair) -> str:
    remark = f", or {each.beyond}" if each.beyond else ""
    paper = PAPERS.get(each.paper, each.paper)
    return f"{each.name} ({paper}): {each.agreement:.2f}{remark}, c {each.draft_cost:.2f}"


def _between(ticks: Sequence[float], value: float) -> float:
    """The place of a value on an axis whose ticks are evenly spaced, whatever their distance; at most at its edge."""
    edges = ticks if len(ticks) > 1 else [ticks[0], ticks[0] + 1]
    index = min(bisect_left(edges, value, lo=1), len(edges) - 1) - 1
    low, high = edges[index : index + 2]
    return min(max(index + (value - low) / (high - low), -0.5), len(ticks) - 0.5)
