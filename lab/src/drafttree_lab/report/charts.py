"""Figures as inline SVG, drawn by matplotlib; text, axes and series take the colours of the page."""

import io
import re
from collections.abc import Callable
from html import escape

import matplotlib as mpl
from matplotlib.figure import Figure

from drafttree_lab.replay.summary import ResultSummary
from drafttree_lab.report import round_charts, value_charts
from drafttree_lab.report.chart_style import COLORS, INK, STYLE
from drafttree_lab.report.notation import anchor

VALUES = {"bars": value_charts.bars, "lines": value_charts.lines}
ROUNDS = {
    "scatter": round_charts.scatter,
    "heatmap": round_charts.heatmap,
    "boxes": round_charts.boxes,
    "tokens": round_charts.tokens,
}
NOTHING = ("Date", "Creator", "Format", "Type")
"""What matplotlib writes about a file if it is not told otherwise."""


def draw(summary: ResultSummary, axis: str = "") -> str:
    """The figure of a result as an SVG element; empty where it is a table, or nothing was measured.

    Args:
        summary: the summary of the result.
        axis: the name of what it varies.
    """
    maker = _maker(summary)
    if maker is None:
        return ""
    with mpl.rc_context(STYLE):
        file = io.StringIO()
        figure = maker(summary, axis)
        figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(NOTHING))
    return _inline(file.getvalue(), summary)


def _maker(summary: ResultSummary) -> Callable[[ResultSummary, str], Figure] | None:
    """What draws a figure, None where it has nothing to draw."""
    if summary.figure in VALUES and any(entry.measured for entry in summary.entries):
        return VALUES[summary.figure]
    if summary.figure in ROUNDS and summary.points and all(summary.points.values()):
        return ROUNDS[summary.figure]
    return None


def _inline(text: str, summary: ResultSummary) -> str:
    """The SVG element alone, with a label, ids of its own, and the page's colours."""
    element = text[text.index("<svg") :].replace(INK, "currentColor")
    for place, own in enumerate(COLORS):
        element = element.replace(own, f"var(--series-{place})")
    element = re.sub("<style.*?</style>", "", element, flags=re.DOTALL)
    prefix = anchor(summary.id)
    element = re.sub(r'\bid="', f'id="{prefix}-', element)
    element = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", element)
    element = re.sub("<svg [^>]*>", lambda tag: re.sub(' (width|height)="[^"]*"', "", tag[0]), element, count=1)
    return element.replace("<svg ", f'<svg role="img" aria-label="{escape(summary.title)}" ', 1)
