"""How a page writes numbers and names, and the colours of its series."""

import re
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttree.core.errors import InputError
from drafttree_lab.replay.judge import Judgement
from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.paper import UNTOLD

if TYPE_CHECKING:
    from jinja2 import Template

COLORS = ("#0072b2", "#d55e00", "#009e73", "#a8428a", "#b07a00", "#2aa1c9", "#6b7280")
"""Colours of series that colour-blind readers can distinguish, after Okabe and Ito; the dark theme has others."""


def number(value: float) -> str:
    """A measured number with a useful number of digits."""
    if abs(value) >= 100:
        return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def interval(value: Value) -> str:
    """The interval of a measured number; empty for a single prompt."""
    return "" if value.low is None or value.high is None else f"{number(value.low)} to {number(value.high)}"


def decimals(values: Iterable[float]) -> int:
    """The largest number of decimals among published numbers; papers print all of a column with as many."""
    return max((len(f"{value:.10g}".partition(".")[2]) for value in values if value == value), default=0)


def printed(value: float, decimal_places: int | None = None) -> str:
    """A published number with so many decimals, by default all it has; empty for a missing one."""
    if value != value:
        return ""
    return f"{value:.10g}" if decimal_places is None else f"{value:.{decimal_places}f}"


def model_name(model: str) -> str:
    """The name of a published number's target, as the page shows it."""
    return "model not told" if model == UNTOLD else model


def told(judgement: Judgement) -> list[str]:
    """The finding of a judgement and its reason, a line each; empty for a repeated judgement."""
    if judgement.repeats:
        return []
    remark = f"; about {judgement.needed} prompts would decide" if judgement.needed else ""
    return [judgement.said + remark, *([judgement.reason] if judgement.reason else [])]


def anchor(name: str) -> str:
    """The HTML id of a paper or result."""
    return re.sub(r"[^\w-]", "-", name)


def result_name(result: str) -> str:
    """A table or figure as papers refer to it: "Table 1" of `talon/1`, "Figure 3a" of `dynatree-v1/fig3a`."""
    name, _, suffix = result.rpartition("/")[2].partition("-")
    words = f"Table {name}" if name.isdigit() else re.sub("^fig(?=[0-9])", "Figure ", name)
    return words[:1].upper() + words[1:] + (f", {suffix}" if suffix else "")


def template(name: str, **filters: Callable[..., Any]) -> "Template":
    """A template of this folder; its filters are the functions of this file and the given ones."""
    import jinja2  # late: only commands that make a page need it

    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("drafttree_lab.report", ""), autoescape=True, **options
    )
    functions = (anchor, number, interval, result_name, decimals, printed, model_name, told)
    environment.filters |= {function.__name__: function for function in functions} | filters
    environment.globals |= {"product": product, "zip": zip}
    return environment.get_template(name)


def write_text(text: str, path: Path) -> None:
    """Write a file that `-o` names.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; name another with -o") from None
