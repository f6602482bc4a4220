"""The figure of the map of winners: an SVG with panels for every curve v(n) and confidence, in light and dark themes.

It follows the reader's theme even as an image in a page. To fit on a phone, curves are stacked, and cells name families
by their first letters.
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import log

from drafttree_lab.graded import CALIBRATED, CONFIDENCES
from drafttree_lab.report.notation import COLORS, template
from drafttree_lab.winner_map.published import PLAIN, Pair, families
from drafttree_lab.winner_map.winner_map import AGREEMENTS, DRAFT_COSTS, GPU, SLOPES, WinnerMap

PAPERS = {"talon": "TALON", "dynatree-v2": "DynaTree", "traversal": "Traversal"}


def draw(winner_map: WinnerMap) -> str:
    """The text of the SVG file.

    Raises:
        ConfigError: jinja2 is not installed.
    """
    blue, vermilion, green, purple, ochre, sky, grey = COLORS
    family_colors = (blue, sky, green, purple, ochre, vermilion)  # neighbours on the map differ
    slopes = [(slope, description, winner_map.of_slope(slope)) for slope, description in SLOPES.items()]
    return template("winner_map.svg").render(
        panels=slopes,
        ground=[point for point in winner_map.of_slope(GPU) if point.confidence == CALIBRATED],
        marks=list(map(_mark, winner_map.pairs)),
        pairs=list(map(_name, winner_map.pairs)),
        colors={PLAIN: grey, **dict(zip(families(), family_colors, strict=True))},
        confidences=[*CONFIDENCES],
        costs=DRAFT_COSTS,
        agreements=AGREEMENTS,
    )


def _mark(model_pair: Pair) -> tuple[float, float, Pair]:
    """The column position, row position and pair of a mark; columns are spaced by the logarithms of their costs."""
    column = _between(list(map(log, DRAFT_COSTS)), log(model_pair.draft_cost))
    return column, _between(AGREEMENTS, model_pair.agreement), model_pair


def _name(model_pair: Pair) -> str:
    remark = f", or {model_pair.beyond}" if model_pair.beyond else ""
    paper = PAPERS.get(model_pair.paper, model_pair.paper)
    return f"{model_pair.name} ({paper}): {model_pair.agreement:.2f}{remark}, c {model_pair.draft_cost:.2f}"


def _between(ticks: Sequence[float], value: float) -> float:
    """The position of a value on an axis with a tick per unit, between the ticks' values; the edge if it is outside."""
    edges = ticks if len(ticks) > 1 else [ticks[0], ticks[0] + 1]
    index = min(bisect_left(edges, value, lo=1), len(edges) - 1) - 1
    low, high = edges[index : index + 2]
    return min(max(index + (value - low) / (high - low), -0.5), len(ticks) - 0.5)
