"""The figure of who wins where: one SVG with panels for every curve v(n) and confidence, for light and dark themes.

It follows the reader's theme where a page shows it as an image, too. Curves stand below each other and cells name
families by their first letters, so that a phone is wide enough.
"""

from collections.abc import Sequence
from itertools import pairwise
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
    costs = [log(cost) for cost in DRAFT_COSTS]
    marks = [
        (_between(costs, log(model_pair.draft_cost)), _between(AGREEMENTS, model_pair.agreement), model_pair)
        for model_pair in found.pairs
    ]
    blue, vermilion, green, purple, ochre, sky, grey = COLORS
    by_family = zip(
        families(), (blue, sky, green, purple, ochre, vermilion), strict=True
    )  # neighbours on the map differ
    return template("winner_map.svg").render(
        panels=[(slope, description, found.of_slope(slope)) for slope, description in SLOPES.items()],
        ground=[point for point in found.of_slope(GPU) if point.confidence == CALIBRATED],
        marks=marks,
        pairs=[_name(model_pair) for model_pair in found.pairs],
        colors={PLAIN: grey, **dict(by_family)},
        confidences=[*CONFIDENCES],
        costs=DRAFT_COSTS,
        agreements=AGREEMENTS,
    )


def _name(each: Pair) -> str:
    remark = f", or {each.beyond}" if each.beyond else ""
    paper = PAPERS.get(each.paper, each.paper)
    return f"{each.name} ({paper}): {each.agreement:.2f}{remark}, c {each.draft_cost:.2f}"


def _between(ticks: Sequence[float], value: float) -> float:
    """The place of a value on an axis whose ticks are evenly spaced, whatever their distance; at most at its edge."""
    steps = list(pairwise(ticks)) or [(ticks[0], ticks[0] + 1)]
    step_indices = (index for index, (_, high) in enumerate(steps) if value <= high)
    index = next(step_indices, len(steps) - 1)
    low, high = steps[index]
    return min(max(index + (value - low) / (high - low), -0.5), len(ticks) - 0.5)
